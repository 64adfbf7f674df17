"""Messages of a secure round: the entries of each stage.

All entries are bytes by party, and the sender of none is trusted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from flwr.app import ConfigRecord, RecordDict

from engram.core.checks import must
from engram.guards.calibration import noise_multiplier
from engram.guards.secure.session import Session, threshold
from engram.settings.errors import brief, few
from engram.settings.experiment import Experiment
from engram.wire.wire import (
    ARRAYS,
    TRAINING,
    read_int,
    read_list,
    to_params,
    units_entries,
    units_of,
)

SECURE: Final = "secure"
"""Name of the record with a stage's entries; in a message to train, of the shares for the party."""
STAGE: Final = "stage"

Stage = Literal["keys", "shares", "survivors", "unmask"]
"""Stages that a query asks for, rounds 0, 1, 3 and 4 of Fig. 4; in round 2 clients train."""

_LONGEST: Final = 512  # bytes of an entry: a pair of sealed shares has 160


def to_entries(data: Mapping[int, bytes]) -> dict[str, Any]:
    """Returns the entries of a record with bytes by party."""
    return {"parties": list(data), "data": list(data.values())}


def read_entries(record: ConfigRecord) -> dict[int, bytes]:
    """Reads the entries of ``to_entries``.

    Raises:
        KeyError: An entry is missing.
        TypeError, ValueError: It is something else.
    """
    parties, data = read_list(record, "parties", int), record["data"]
    if not isinstance(data, list) or len(data) != len(parties):
        raise TypeError(f"data must be a list with an entry for each party, got {brief(data)}")
    found = {
        party: each
        for party, each in zip(parties, data, strict=True)
        if isinstance(each, bytes) and len(each) <= _LONGEST and 0 <= party < 2**31
    }
    if len(found) < len(data):
        times = Counter(parties)
        wrong = [party for party in times if party not in found or times[party] > 1]
        raise ValueError(
            f"data must be at most {_LONGEST} bytes for each of different parties, which have "
            f"numbers from 0, got something else of {few(wrong)}"
        )
    return found


def digests(content: RecordDict, e: Experiment) -> tuple[str, str]:
    """Returns SHA-256 of settings with units, and of the model, of a message to train.

    They decide an update, besides the rows.

    A server that had all parties but one train by a step size of 0, or from a model at which
    nothing moves, would find that one's update in the sum (Pasquini, Francati, Ateniese. Eluding
    Secure Aggregation in Federated Learning via Model Inconsistency. CCS 2022).

    Raises:
        EngramError: The message's units are no units.
        KeyError: It has no model.
    """
    units = json.dumps(units_entries(units_of(content)), sort_keys=True)
    model = hashlib.sha256()
    for name, leaf in sorted(to_params(content.array_records[ARRAYS]).items()):
        model.update(json.dumps([name, str(leaf.dtype), *leaf.shape]).encode())
        model.update((leaf + 0.0).numpy().tobytes())  # of -0.0, the bits of 0.0
    return hashlib.sha256(_settings(e) + units.encode()).hexdigest(), model.hexdigest()


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


def session_of(config: ConfigRecord, e: Experiment) -> Session:
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
