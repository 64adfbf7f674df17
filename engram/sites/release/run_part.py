"""The part of a release record about a run, which its coordinator makes."""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from engram.attack.audit.report import AUDIT
from engram.data.digests import file_sha256
from engram.guards.secure.registry import REGISTRY
from engram.runs.participation import participation
from engram.runs.release import RECORD, RELEASE, Release, RunPart, model_digests, write_release
from engram.runs.run import Run
from engram.runs.run_places import begun
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.files import read_json, refusing
from engram.sites.audit import stamp
from engram.sites.terms import request_of
from engram.wire.clock import now

_KEYS: Final = ("ca.crt", REGISTRY)


def begin_release(
    folder: Path, server: Path, requester: str, sbom: Path | None, audit: Path | None
) -> Path:
    """Begins the release of a finished run on a federation; returns the release's folder.

    For the arguments see ``RunPart``; without ``audit`` it is the run's own, if there is one.

    Raises:
        Refused: The run is not finished, or a file cannot be read or written.
    """
    out = folder / RELEASE
    if (out / RECORD).exists():
        raise Refused(f"{out} has a release already: sign it, or remove it and begin anew")
    made = _run_part(folder, requester, sbom, audit)
    with refusing(f"{out} cannot be written"):
        out.mkdir(mode=0o700, exist_ok=True)
        for name in _KEYS:
            shutil.copyfile(server / name, out / name)
    write_release(out, Release(run=made, sites=[]))
    return out


def _run_part(folder: Path, requester: str, sbom: Path | None, audit: Path | None) -> RunPart:
    record = Run.open(folder)
    config, _ = record.config, record.finished  # or it is refused
    e = Experiment.from_config(begun(folder, None)[0])
    asked = request_of(e, str(config["training"]), 0)
    attacks = audit or (folder / AUDIT if (folder / AUDIT).is_file() else None)
    files, hashes = {"sbom": sbom, "audit": attacks}, model_digests(record)
    hashes |= {name: file_sha256(path) for name, path in files.items() if path}
    if schema := record.first_row.get("schema"):
        hashes["schema"] = hashlib.sha256(str(schema).encode()).hexdigest()
    shares = participation(record.rows())
    part = {
        "format": 1,
        **stamp(now()),
        "requester": requester,
        "training": asked.training,
        "method": asked.method,
        "settings": {**asked.settings},
        "rounds": record.done,
        "participation": {str(share.client): share.took_part for share in shares},
        "plug-ins": list(asked.plugins),
        "guarantee": asked.privacy,
        "audit": [*read_json(attacks).get("verdict", [])] if attacks else [],
        "sources": config["sources"],
        "versions": config["versions"],
        "hashes": hashes,
    }
    return RunPart.model_validate(part)
