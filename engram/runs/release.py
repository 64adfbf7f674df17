"""The release record of a run: what its models rest on, which each site signs for its part.

A folder holds ``release.json``, the record, with the ``registry`` of the sites' public keys and
``ca.crt``, the certificate of the authority that has signed it. A site signs the part about the run
and its own, as sorted JSON. Each client that has taken part must have signed.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ConfigDict, Field, StringConstraints

from engram.data.file_models import Count, Figure, Stored, of_kind
from engram.data.readers.digests import file_sha256
from engram.guards.secure.registry import is_signed
from engram.guards.secure.signatures import sign, verify
from engram.guards.secure.site_registry import own_registry, registered_keys
from engram.link.keys import fingerprint, read_certificates
from engram.runs.checkpoints import DamagedCheckpoint, checkpoints_in, file_digests
from engram.runs.run import Run
from engram.settings.errors import Refused, few_names
from engram.settings.fields import Scalar
from engram.settings.files import read_json, refusing, replace_file, sorted_json

RELEASE: Final = "release"
"""The folder of a release in a run's folder."""

RECORD: Final = "release.json"

_SIGNATURE: Final = "signature"
_PURPOSE: Final = b"engram release\n"

_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Hashes = dict[str, _Digest]
_Training = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{16}|run-\d+)$")]
_Client = Annotated[str, StringConstraints(pattern=r"^\d{1,7}$")]
_Range = Annotated[list[Count], Field(min_length=2, max_length=2)]


class _Strict(Stored):
    """A part of the record, which has no other entries than these."""

    model_config = ConfigDict(extra="forbid")


class Privacy(_Strict):
    """A differential privacy guarantee."""

    epsilon: Figure
    delta: Figure
    adjacency: str = Field(description="the change of the data that epsilon is of")


class RunPart(_Strict):
    """The part about the run, by its coordinator; each site signs it."""

    format: Literal[1] = Field(description="version of this record")
    time: str = Field(description="when the record was made, in UTC")
    requester: str = Field(description="who asked for the release, and for what project")
    training: _Training = Field(description="its name, by which nodes keep its memories")
    method: str
    settings: dict[str, Scalar] = Field(description="those that are not the defaults")
    rounds: Count
    participation: dict[_Client, Count] = Field(description="rounds that learned from each client")
    plug_ins: list[str]
    guarantee: str = Field(description="what privacy the settings promise; empty for none")
    audit: list[str] = Field(description="verdicts of attacks; empty if none were tried")
    sources: list[str] = Field(description="fingerprints of the source code that has run")
    versions: dict[str, str] = Field(description="of the packages that compute")
    hashes: _Hashes = Field(
        description="SHA-256 of the models' files, schema, audit and software bill of materials"
    )


class Ledger(_Strict):
    """The site's privacy ledger, over all runs."""

    epsilon: Figure = Field(description="spent of its data, rounded up to a tenth of the limit")
    limit: Figure = Field(description="the site's total; 0 for none")
    delta: Figure
    head: _Digest = Field(description="SHA-256 of its last line, which has that of the one before")


class SitePart(_Strict):
    """The part about a site, by itself."""

    client: Count
    key: _Digest = Field(description="fingerprint of its public key")
    time: str = Field(description="when it has signed, in UTC")
    asked_by: str = Field(description="the server that has asked its node")
    source: str = Field(description="fingerprint of the source code that its node has run")
    policy: _Digest = Field(description="SHA-256 of the rules in force, as sorted JSON")
    least: dict[str, Count] = Field(description="the policy's rules of least numbers")
    must_approve: bool = Field(description="whether its policy wants each training approved")
    approvals: dict[str, Literal["", "approved", "refused"]] = Field(
        description="its answers, by the digest of all that was asked for"
    )
    trained: list[str] = Field(description="first and last day of its training, in UTC")
    rounds: Count = Field(description="answers of training, by its log")
    rows: _Range = Field(description="training rows: least and most")
    events: dict[str, _Range] = Field(description="training rows by class; empty of values")
    memory: _Hashes = Field(description="of its client's memory, of which its own model is made")
    privacy: Privacy | None = Field(description="epsilon of its data in this run, at most")
    ledger: Ledger | None
    log: _Digest = Field(description="SHA-256 of its log's last line")
    signature: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$")] = Field(
        description="ECDSA with SHA-256, of the run's part and this one, in hexadecimal"
    )


class Release(_Strict):
    """A release record of Engram: the basis of a run's models, signed by each of its sites."""

    run: RunPart
    sites: list[SitePart]


# --- Files ---------------------------------------------------------------------------------------


def read_release(folder: Path) -> Release:
    """Reads a record that need not be signed yet.

    Raises:
        Refused: There is none, or it is damaged or not as it was written.
    """
    path = folder / RECORD
    found = of_kind(Release, read_json(path), path)
    if path.read_bytes() != _serialized(found):  # so that no two files stand for one record
        raise Refused(f"{path} has been edited: take it again as engram release wrote it")
    return found


def write_release(folder: Path, release: Release) -> None:
    """Writes a record, its sites in ascending order.

    Raises:
        Refused: It cannot be written.
    """
    ordered = sorted(release.sites, key=lambda site: site.client)
    with refusing(f"{folder / RECORD} cannot be written"):
        replace_file(folder / RECORD, _serialized(Release(run=release.run, sites=ordered)))


def _serialized(release: Release) -> bytes:
    text = json.dumps(_contents(release), indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode()


def _contents(part: _Strict) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True)


# --- Signatures ----------------------------------------------------------------------------------


def signed_part(run: RunPart, site: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> SitePart:
    """Signs a site's part of a record; ``site`` has its entries but the signature, by key."""
    part = SitePart.model_validate({**site, _SIGNATURE: ""})
    return part.model_copy(update={_SIGNATURE: sign(_words(run, part), key).hex()})


def verified_release(folder: Path, keys: Path) -> Release:
    """Returns a record that all sites have signed, by the ``ca.crt`` in a folder of trusted keys.

    The registry is the one in that folder, or else the record's.

    Raises:
        Refused: A site has not signed, the record is not what it has signed, or the authority has
            not signed the registry of keys.
    """
    found, alone = read_release(folder), own_registry(folder) and not own_registry(keys)
    place = folder if alone else keys
    if not is_signed(own_registry(place), read_certificates(keys / "ca.crt")):
        raise Refused(
            f"{place / 'registry'} must be signed by the authority of {keys / 'ca.crt'}: take it "
            "from the federation's server folder"
        )
    parties = registered_keys(place)
    wanted = sorted(int(client) for client, rounds in found.run.participation.items() if rounds)
    there = [site.client for site in found.sites]
    if there != wanted or not wanted:
        lack = sorted({*wanted} - {*there})
        named = few_names([f"client-{n}" for n in lack]) or "another, or one twice"
        raise Refused(
            f"{folder / RECORD} must be signed by each client that took part, once, and by no "
            f"other: {named} has {'not ' * bool(lack)}signed: engram release --sign FOLDER"
        )
    for site in found.sites:
        if site.client not in parties or fingerprint(parties[site.client]) != site.key:
            raise Refused(f"{place / 'registry'} has no such key of client-{site.client}")
        verify(
            site.client, bytes.fromhex(site.signature), _words(found.run, site), parties.__getitem__
        )
    return found


def _words(run: RunPart, site: SitePart) -> bytes:
    told = {name: value for name, value in _contents(site).items() if name != _SIGNATURE}
    return _PURPOSE + sorted_json({"run": _contents(run), "site": told})


# --- Exports -------------------------------------------------------------------------------------


def model_digests(record: Run) -> dict[str, str]:
    """Returns the SHA-256 of each file of a run's checkpoints, by path.

    Raises:
        Refused: A checkpoint is damaged.
    """
    found = dict[str, str]()
    for root in [record.folder / "checkpoints", *record.picked_folders()]:
        for number, path in checkpoints_in(root).items():
            inside = path.relative_to(record.folder).as_posix()
            try:
                digests = file_digests(path, number)
            except DamagedCheckpoint as error:
                raise Refused(f"{path} is damaged: {error}") from error
            found |= {f"{inside}/{name}": digest for name, digest in digests.items()}
    return found


def release_line(release: Path | None) -> dict[str, str]:
    """Returns the line of a card about a release, by heading; empty if there is none."""
    if release is None or not (path := release / RECORD).is_file():
        return {}
    return {"release": f"its record's SHA-256 is {file_sha256(path)}"}


def check_released(record: Run) -> None:
    """Checks that a run's models may be exported, where policies of its sites demand a release.

    Raises:
        Refused: There is none, it is not signed by all, or it is of another run or other models.
    """
    demanding = sorted({client for row in record.rows() for client in row.get(RELEASE, ())})
    if not demanding:
        return
    folder = record.folder / RELEASE
    if not (folder / RECORD).is_file():
        named = few_names([f"client-{client}" for client in demanding])
        raise Refused(
            f"policies of {named} demand a release before a model is exported, and {record.folder} "
            f"has none: engram release {record.folder} begins it, and each site signs"
        )
    found = verified_release(folder, folder).run
    models = model_digests(record)
    if found.training != record.config["training"] or not models.items() <= found.hashes.items():
        raise Refused(f"{folder / RECORD} is of another run, or of other models: make a new one")


def joined(releases: Sequence[Release]) -> Release:
    """Returns a record with the parts of all its copies, each of which some sites have signed.

    Raises:
        Refused: They are not copies of one record.
    """
    first = releases[0]
    if any(other.run != first.run for other in releases):
        raise Refused("releases must be copies of one record: their parts about the run differ")
    sites = {site.client: site for other in releases for site in other.sites}
    return Release(run=first.run, sites=list(sites.values()))
