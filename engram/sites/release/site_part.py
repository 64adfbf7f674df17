"""The part of a release record about a site, which the site makes of its node's state and signs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engram.client.disk_memory import DiskStore
from engram.client.hosts.rows import trained_table
from engram.client.training_description import Training, read_training
from engram.data.readers.digests import file_sha256
from engram.guards.accounting.guarantee import adjacency, spent
from engram.guards.calibration import plan_of
from engram.guards.presets import is_scored, protections
from engram.link.credentials import read_node
from engram.link.keys import fingerprint, read_node_key, read_public_key
from engram.runs.release import (
    Release,
    RunPart,
    SitePart,
    joined,
    read_release,
    signed_part,
    verified_release,
    write_release,
)
from engram.settings.errors import Refused, few_names
from engram.settings.experiment import Experiment
from engram.sites.approvals import APPROVALS, requests
from engram.sites.audit import AUDIT, RELEASED, Audit, stamp
from engram.sites.ledger import LEDGER, Ledger
from engram.sites.policy import Policy, in_force, kept_file
from engram.sites.terms import request_of
from engram.wire.clock import now
from engram.wire.messages import EVALUATE, TRAIN

_OWN: Final = {"dataset", "schema"}  # settings of which a node has its own
_STEPS: Final = (1, 2, 5)  # of ranges, times powers of ten
_LEAST: Final = ("least-rows", "least-drawn", "least-count", "secure")


def sign_release(release: Path, folder: Path, state: Path) -> SitePart:
    """Adds the part of a client's folder to that of a release, and notes that in the site's log.

    Raises:
        Refused: The record does not fit what the node knows of the training; its log or ledger is
            damaged; or its rows are not those that it has learned from, or cannot be read.
    """
    found, audit = read_release(release), Audit(state / AUDIT)
    node = read_node(folder)
    rules = _rules(folder, state)
    training = read_training(state / "memory" / found.run.training)
    _compare(found.run, training)
    log = audit.read()
    if log.fault:
        raise Refused(f"{log.fault}: a site signs no release by a log that was changed")
    done = (line for line in log.lines if "kind" in line and "why" not in line)
    lines = [line for line in done if line.get("training") == found.run.training]
    work = [line for line in lines if line["kind"] == TRAIN]
    if not work:
        raise Refused(f"this site's log has no round of training {found.run.training}")
    counted, least = _counted(training, node.partition_id), rules.least_count
    answers = len(work) + _noised_scores(lines, training.experiment, rules)
    rows = row_range(sum(counted.values()), least)
    rules_by_key = rules.model_dump(mode="json", by_alias=True)
    asked = [one for one in requests(state / APPROVALS) if one.training == training.folder.name]
    part = {
        "client": node.partition_id,
        "key": fingerprint(read_public_key(node.public_key)),
        **stamp(now()),
        "asked-by": node.superlink,
        "source": training.source,
        "policy": rules.digest,
        "least": {key: rules_by_key[key] for key in _LEAST},
        "must-approve": rules.approval,
        "approvals": {one.terms: one.answer for one in asked},
        "trained": [work[0]["time"][:10], work[-1]["time"][:10]],
        "rounds": len(work),
        "rows": rows,
        "events": {name: row_range(n, least) for name, n in counted.items() if name},
        "memory": _memory(state, found.run.training, node.partition_id),
        "privacy": _privacy(found.run, training, answers, max(1, rows[0])),
        "ledger": _ledger(state, rules),
        "log": log.last,
    }
    made = signed_part(found.run, part, read_node_key(node.private_key))
    about = {"run": work[-1]["run"], "training": found.run.training, "method": found.run.method}
    audit.append({"kind": RELEASED, **about}, trained=False)
    write_release(release, joined([found, Release(run=found.run, sites=[made])]))
    return made


def check_released_at_site(
    folder: Path, state: Path, release: Path | None, training: str, client: int
) -> None:
    """Checks that a site may export what its node keeps.

    Raises:
        Refused: Its policy demands a release, and ``release`` is None, not signed by all, or of
            other models.
    """
    if not _rules(folder, state).release:
        return
    if release is None:
        raise Refused(
            "this site's policy demands a release before a model is exported: name its folder by "
            "--release, once all sites have signed it"
        )
    found = verified_release(release, folder)
    signed = next((site.memory for site in found.sites if site.client == client), None)
    if found.run.training != training or signed != _memory(state, training, client):
        raise Refused(
            f"{release} must be of training {training}, as client {client} remembers it now, and "
            "is of another, or of other models: its coordinator makes a new one"
        )


def row_range(rows: int, least: int) -> list[int]:
    """Returns the range, between multiples 1, 2 and 5 of powers of ten, that a number lies in.

    Numbers below ``least`` are told as no more than that.
    """
    if rows < least:
        return [0, least - 1]
    bounds = [step * 10**power for power in range(len(str(rows)) + 1) for step in _STEPS]
    low = max(bound for bound in bounds if bound <= rows)
    high = min(bound for bound in bounds if bound > rows) - 1
    return [max(low, least), high]


def _rules(folder: Path, state: Path) -> Policy:
    return in_force(kept_file(state) or folder, state)[0]


def _compare(run: RunPart, training: Training) -> None:
    """Refuses a record of other settings than the node has trained by."""
    asked, source = request_of(training.experiment, run.training, 0), training.source
    ours = {**asked.settings, "method": asked.method, "guarantee": asked.privacy}
    theirs = {**run.settings, "method": run.method, "guarantee": run.guarantee}
    other = {key for key in {*ours, *theirs} - _OWN if ours.get(key) != theirs.get(key)}
    if other := other | ({"source"} if source not in run.sources else set()):
        raise Refused(
            f"the release must be of the training that this node knows, and differs in "
            f"{few_names(sorted(other))}: the coordinator makes another one"
        )
    if training.has_other_rows:
        raise Refused(
            "this site's rows must be those that the training has learned from, and have changed "
            "since: put them back while it signs"
        )


def _noised_scores(lines: Sequence[Mapping[str, Any]], e: Experiment, rules: Policy) -> int:
    """Number of answers of scores that cost epsilon; where there is a total, not all are told."""
    rounds = [line["round"] for line in lines if line["kind"] == EVALUATE]
    total = rules.epsilon or e.epsilon
    return sum(e.covers_clients and (not total or is_scored(e, number)) for number in rounds)


def _memory(state: Path, training: str, client: int) -> dict[str, str]:
    store = DiskStore(state / "memory" / training)
    files = [*store.versions(client).values(), *store.serving(client).values()]
    return {path.name: file_sha256(path) for path in files}


def _counted(training: Training, client: int) -> dict[str, int]:
    """Returns the number of a client's training rows of each class; of values under no name."""
    if not training.experiment.own.trains_network:
        rows = trained_table(training, client).train[client]
        return {"": 0 if rows is None else len(rows.y)}
    data = training.data(client)
    targets = data.train.y[data.train.rows[client]]
    if targets.ndim != 1 or targets.is_floating_point():
        return {"": len(targets)}
    counts = targets.bincount(minlength=len(data.classes)).tolist()
    names = data.classes or range(len(counts))
    return {str(name): count for name, count in zip(names, counts, strict=True)}


def _privacy(run: RunPart, training: Training, answers: int, rows: int) -> dict[str, Any] | None:
    """Returns epsilon of a site's data in a run; None if the run's settings promise none.

    It is that of the least ``rows`` of their range: an exact one could tell how many there are.
    """
    e = training.experiment
    plan = plan_of(e, rows)
    if not protections(e).releases(plan):
        return None
    epsilon = spent(e, max(answers, run.rounds) if plan.secret else answers, rows)
    return {"epsilon": epsilon, "delta": e.delta, "adjacency": adjacency(e)}


def _ledger(state: Path, rules: Policy) -> dict[str, Any] | None:
    book = Ledger(state / LEDGER, rules.epsilon, rules.delta)
    if not (books := book.sound()).lines:
        return None
    most, step = max(book.spent(books).values(), default=0.0), rules.epsilon / 10 or 1.0
    found = {"epsilon": round(step * math.ceil(most / step), 6), "head": books.last}
    return found | {"limit": rules.epsilon, "delta": rules.delta}
