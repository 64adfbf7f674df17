"""The part of a release record about a run, which its coordinator makes."""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from engram.attack.audit.report import AUDIT
from engram.data.readers.digests import file_sha256
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.site_registry import registered_keys
from engram.home.learned import models_of
from engram.runs.participation import participation
from engram.runs.release import RECORD, RELEASE, Release, RunPart, model_digests, write_release
from engram.runs.run import Run
from engram.runs.run_places import begun
from engram.settings.errors import Refused, few_names
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
        Refused: The run is not finished, a client has no key, or a file cannot be read or written.
    """
    out = folder / RELEASE
    if (out / RECORD).exists():
        raise Refused(f"{out} has a release already: sign it, or remove it and begin anew")
    made = _run_part(folder, requester, sbom, audit)
    _check_keys(made, server)
    with refusing(f"{out} cannot be written"):
        out.mkdir(mode=0o700, exist_ok=True)
        for name in _KEYS:
            shutil.copyfile(server / name, out / name)
    write_release(out, Release(run=made, sites=[]))
    return out


def _check_keys(run: RunPart, server: Path) -> None:
    """Refuses a run with clients that have no key of their own to sign with."""
    known = registered_keys(server)
    lacking = [client for client, rounds in run.participation.items() if rounds]
    if named := few_names([f"client-{n}" for n in lacking if int(n) not in known]):
        raise Refused(
            f"each client that took part must have a key in {server / REGISTRY}, and {named} has "
            "none: a node of several clients has that of one: train again with a node for each"
        )


def _common_digest(record: Run, e: Experiment) -> dict[str, str]:
    """SHA-256 of the common model as ``engram export`` writes it; empty if there is none."""
    family = models_of(e)
    try:
        package = family.package(family.learned(record, e), None)
    except Refused:  # each client has its own model
        return {}
    return {"common/model.safetensors": hashlib.sha256(package.weights).hexdigest()}


def _run_part(folder: Path, requester: str, sbom: Path | None, audit: Path | None) -> RunPart:
    record = Run.open(folder)
    config, _ = record.config, record.finished  # or it is refused
    e = Experiment.from_config(begun(folder, None)[0])
    asked = request_of(e, str(config["training"]), 0)
    attacks = audit or (folder / AUDIT if (folder / AUDIT).is_file() else None)
    verdict = read_json(attacks).get("verdict") if attacks else []
    if not isinstance(verdict, list):
        raise Refused(f"{attacks} must be the audit.json of an engram audit, and has no verdict")
    files, hashes = {"sbom": sbom, "audit": attacks}, model_digests(record)
    hashes |= {name: file_sha256(path) for name, path in files.items() if path}
    hashes |= _common_digest(record, e)
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
        "audit": verdict,
        "sources": config["sources"],
        "versions": config["versions"],
        "hashes": hashes,
    }
    return RunPart.model_validate(part)
