"""The part of a release record about a site, which the site makes of its node's state and signs."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.client.disk_memory import DiskStore
from engram.client.training_description import Training, read_training
from engram.guards.accounting.guarantee import adjacency, spent
from engram.guards.calibration import plan_of
from engram.guards.presets import is_scored, protections
from engram.link.credentials import read_node
from engram.link.keys import fingerprint, read_node_key, read_public_key
from engram.runs.release import (
    RunPart,
    SitePart,
    read_release,
    sha256_of,
    signed_part,
    verified_release,
    write_release,
)
from engram.settings.errors import Refused, few_names
from engram.settings.experiment import Experiment
from engram.settings.files import sorted_json
from engram.sites.approvals import APPROVALS, requests
from engram.sites.audit import AUDIT, RELEASED, Audit, stamp
from engram.sites.ledger import LEDGER, Ledger
from engram.sites.policy import Policy, in_force, kept_file
from engram.sites.terms import request_of
from engram.wire.clock import now
from engram.wire.messages import EVALUATE, TRAIN

_OWN: Final = {"dataset", "schema"}  # settings of which a node has its own
_STEPS: Final = (1, 2, 5)  # of ranges, times powers of ten


def sign_release(release: Path, folder: Path, state: Path) -> SitePart:
    """Adds a site's part to a release, signed by its key, and notes that in the site's log.

    Args:
        release: The release's folder.
        folder: The client's.
        state: Its node's state.

    Raises:
        Refused: The record does not fit what the node knows of the training; its log or ledger is
            damaged; or its rows are not those that it has learned from, or cannot be read.
    """
    found, audit = read_release(release), Audit(state / AUDIT)
    node = read_node(folder)
    rules, _ = in_force(kept_file(state) or folder, state)
    training = read_training(state / "memory" / found.run.training)
    _compare(found.run, training)
    log = audit.read()
    if log.fault:
        raise Refused(f"{log.fault}: a site signs no release by a log that was changed")
    lines = [line for line in log.lines if _is_of(line, found.run.training)]
    work = [line for line in lines if line["kind"] == TRAIN]
    if not work:
        raise Refused(f"this site's log has no round of training {found.run.training}")
    counted, least = _counted(training, node.partition_id), rules.least_count
    answers = len(work) + _noised_scores(lines, training.experiment, rules)
    in_words = sorted_json(rules.model_dump(mode="json", by_alias=True))
    part = {
        "client": node.partition_id,
        "key": fingerprint(read_public_key(node.public_key)),
        **stamp(now()),
        "asked-by": node.superlink,
        "source": training.source,
        "policy": hashlib.sha256(in_words).hexdigest(),
        "least": _least(rules),
        "must-approve": rules.approval,
        "approvals": _approvals(state, found.run.training),
        "rounds": len(work),
        "rows": row_range(sum(counted.values()), least),
        "events": _events(counted, least),
        "memory": _memory(state, found.run.training, node.partition_id),
        "privacy": _privacy(found.run, training, answers, sum(counted.values())),
        "ledger": _ledger(state, rules),
        "log": {"lines": len(log.lines), "sha256": log.last},
    }
    made = signed_part(found.run, part, read_node_key(node.private_key))
    others = [site for site in found.sites if site.client != made.client]
    about = {"run": work[-1]["run"], "training": found.run.training, "method": found.run.method}
    audit.append({"kind": RELEASED, **about}, trained=False)
    write_release(release, found.model_copy(update={"sites": [*others, made]}))
    return made


def check_released_at_site(
    folder: Path, state: Path, release: Path | None, training: str, client: int
) -> None:
    """Checks that a site whose policy demands a release may export what its node keeps.

    Args:
        folder: The client's folder, with the certificate of its authority.
        state: Its node's state.
        release: The release's folder; None if the site has named none.
        training: The training's name.
        client: The client.

    Raises:
        Refused: There is no release, it is not signed by all, or it is of other models.
    """
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


def row_range(rows: int, least: int) -> dict[str, int]:
    """Returns the range, between multiples 1, 2 and 5 of powers of ten, that a number lies in.

    Numbers below ``least`` are told as no more than that.
    """
    if rows < least:
        return {"low": 0, "high": least - 1}
    bounds = [step * 10**power for power in range(len(str(rows)) + 1) for step in _STEPS]
    low = max(bound for bound in bounds if bound <= rows)
    high = min(bound for bound in bounds if bound > rows) - 1
    return {"low": max(low, least), "high": high}


def _compare(run: RunPart, training: Training) -> None:
    """Refuses a record of other settings than the node has trained by."""
    asked = request_of(training.experiment, run.training, 0)
    ours, theirs = (
        {key: value for key, value in settings.items() if key not in _OWN}
        for settings in (asked.settings, run.settings)
    )
    other = [key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)]
    other += ["method"] * (asked.method != run.method)
    other += ["guarantee"] * (asked.privacy != run.guarantee)
    other += ["source"] * (training.source not in run.sources)
    if other:
        raise Refused(
            f"the release must be of the training that this node knows, and differs in "
            f"{few_names(sorted(other))}: the coordinator makes another one"
        )
    if training.has_other_rows:
        raise Refused(
            "this site's rows must be those that the training has learned from, and have changed "
            "since: put them back while it signs"
        )


def _is_of(line: Mapping[str, Any], training: str) -> bool:
    return "kind" in line and line.get("training") == training and "why" not in line


def _noised_scores(lines: Sequence[Mapping[str, Any]], e: Experiment, rules: Policy) -> int:
    """Number of answers of scores that cost epsilon; where there is a total, not all are told."""
    rounds = [line["round"] for line in lines if line["kind"] == EVALUATE]
    total = rules.epsilon or e.epsilon
    return sum(e.covers_clients and (not total or is_scored(e, number)) for number in rounds)


def _least(rules: Policy) -> dict[str, int]:
    return {
        "rows": rules.least_rows,
        "drawn": rules.least_drawn,
        "count": rules.least_count,
        "sites": rules.secure,
    }


def _approvals(state: Path, training: str) -> list[dict[str, str]]:
    return [
        {"terms": one.terms, "asked": one.asked, "answer": one.answer}
        for one in requests(state / APPROVALS)
        if one.training == training
    ]


def _memory(state: Path, training: str, client: int) -> dict[str, str]:
    store = DiskStore(state / "memory" / training)
    files = [*store.versions(client).values(), *store.serving(client).values()]
    return {path.name: sha256_of(path) for path in files}


def _counted(training: Training, client: int) -> dict[str, int]:
    """Returns the number of a client's training rows of each class; of values under one name."""
    if training.experiment.own.trains_network:
        data = training.data(client)
        targets: npt.NDArray[Any] = data.train.y[data.train.rows[client]].numpy()
        return _by_class(targets, data.classes)
    tables = training.tables(client)
    rows = tables.train[client]
    if rows is None:
        raise Refused(f"this node has no rows of client {client}, whose part it is to sign")
    return _by_class(np.asarray(rows.y), tables.classes)


def _by_class(targets: npt.NDArray[Any], classes: Sequence[str]) -> dict[str, int]:
    if targets.ndim != 1 or not (classes or np.issubdtype(targets.dtype, np.integer)):
        return {"": len(targets)}
    values, counts = np.unique(targets.astype(np.int64), return_counts=True)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    names = classes or [str(value) for value in values]
    return {
        name: found.get(number if classes else int(name), 0) for number, name in enumerate(names)
    }


def _events(counted: Mapping[str, int], least: int) -> list[dict[str, Any]]:
    return [
        {"name": name, "rows": row_range(count, least)} for name, count in counted.items() if name
    ]


def _privacy(run: RunPart, training: Training, answers: int, rows: int) -> dict[str, Any] | None:
    """Returns epsilon of a site's data in a run; None if the run's settings promise none."""
    e = training.experiment
    plan = plan_of(e, rows)
    if not protections(e).releases(plan):
        return None
    epsilon = spent(e, max(answers, run.rounds) if plan.secret else answers, rows)
    return {"epsilon": epsilon, "delta": e.delta, "adjacency": adjacency(e)}


def _ledger(state: Path, rules: Policy) -> dict[str, Any] | None:
    book = Ledger(state / LEDGER, rules.epsilon, rules.delta)
    books = book.sound()
    if not books.lines:
        return None
    most, head = max(book.spent(books).values(), default=0.0), {"lines": len(books.lines)}
    found = {"epsilon": most, "limit": rules.epsilon, "delta": rules.delta}
    return found | {"head": head | {"sha256": books.last}}
