"""The terms of a secure round in messages, and digests of the settings and the model."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from engram.core.checks import must
from engram.guards.calibration import noise_multiplier
from engram.guards.secure.session import Session, threshold
from engram.guards.secure.wire import SECURE
from engram.settings.experiment import Experiment
from engram.wire.messages import Content, Entries
from engram.wire.wire import (
    ARRAYS,
    CONFIG,
    TRAINING,
    arrays_of,
    digest,
    read_int,
    read_list,
    units_entries,
    units_of,
)


def digests(content: Content, e: Experiment) -> tuple[str, str]:
    """Returns SHA-256 of settings with units, and of the model, of a message to train.

    They decide an update, besides the rows. Of a fit to tables, it is the other way around: the
    model is what all exchanges of a fit have alike, since sums of statistics at coefficients that
    hardly differ would tell apart whoever is in one of them alone. See ``unmasked_sums``.

    A server that had all parties but one train by a step size of 0, or from a model at which
    nothing moves, would find that one's update in the sum (Pasquini, Francati, Ateniese. Eluding
    Secure Aggregation in Federated Learning via Model Inconsistency. CCS 2022).

    Raises:
        EngramError: The message's units are no units.
        KeyError: It has no model.
    """
    units = json.dumps(units_entries(units_of(content)), sort_keys=True)
    work, model = hashlib.sha256(_settings(e) + units.encode()).hexdigest(), hashlib.sha256()
    if not e.own.trains_network:
        return digest({name: content[name] for name in content.keys() - {CONFIG, SECURE}}), work
    for name, leaf in sorted(arrays_of(content, ARRAYS).items()):
        model.update(json.dumps([name, str(leaf.dtype), *leaf.shape]).encode())
        model.update((leaf + 0.0).numpy().tobytes())  # of -0.0, the bits of 0.0
    return work, model.hexdigest()


@lru_cache(maxsize=1)  # all parties of a process, round after round
def _settings(e: Experiment) -> bytes:
    same = {key: value for key, value in e.identity().items() if key != "data-dir"}
    return json.dumps([same, e.rounds], sort_keys=True).encode()  # schedules may read rounds


def terms(asked: Mapping[int, int], work: str, model: str) -> dict[str, Any]:
    """Returns the entries of a message with the terms that a plain round lacks.

    ``asked`` has each party's number of clients; the others are of ``digests``.
    """
    parties = {"parties-asked": list(asked), "clients-asked": list(asked.values())}
    return {**parties, "work": work, "model-digest": model}


def check_work(content: Content, e: Experiment, session: Session) -> None:
    """Refuses a message to train by other settings, or from another model, than the terms say.

    Raises:
        ValueError: It is one; a site that trains otherwise than the others can be told apart.
    """
    if digests(content, e) != (session.work, session.model):
        raise ValueError(
            "settings and model must be those of which all sites of round "
            f"{session.number} were told the digest, got others: a site that trains "
            "otherwise can be told apart"
        )


def session_of(config: Entries, e: Experiment) -> Session:
    """Returns the terms of a round, by a message's config.

    Raises:
        KeyError: An entry is missing.
        TypeError, ValueError: It is something else.
    """
    parties, counts = (read_list(config, f"{key}-asked", int) for key in ("parties", "clients"))
    if len(parties) != len(counts):
        raise ValueError(must("clients-asked", len(counts), f"of the {len(parties)} parties"))
    return Session(
        str(config[TRAINING]),
        read_int(config, "server-round"),
        tuple(zip(parties, counts, strict=True)),
        threshold(len(parties), e.secure_threshold),
        e.clip,
        read_int(config, "most-examples"),
        noise_multiplier(e) if e.privacy == "central" else 0.0,
        str(config["work"]),
        str(config["model-digest"]),
    )
