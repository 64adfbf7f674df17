"""A client's memory in a Flower app: in ``context.state``, or in files that outlast the process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context

from engram.client.disk_memory import DiskStore
from engram.client.memory import newest_of
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.flower.messages import ENGRAM
from engram.settings.errors import Refused
from engram.wire.flower import to_params


class Memory:
    """A client's slots between rounds. Of its versions the newest two stay.

    So a round that is asked for again starts from the same memory as before.

    Args:
        context: The node's context.
        training: The training that the memory is of.
        folder: Folder of the files; None for ``context.state``, which a node loses with its run.

    Raises:
        Refused: There is a folder, and the node has no number to name its files by.
    """

    def __init__(self, context: Context, training: str, folder: str | Path | None) -> None:
        self._state, self._prefix = context.state, f"{ENGRAM}-kept.{training}."
        self._store: DiskStore | None = None
        if folder is not None:
            if "partition-id" not in context.node_config:
                words = "memory must be None on a node without partition-id in its --node-config"
                raise Refused(f"{words}, got {str(folder)!r}: add one, another for each node")
            self._client = int(context.node_config["partition-id"])
            self._store = DiskStore(Path(folder) / f"training-{training}")

    def load(self, before: int) -> dict[str, Any] | None:
        """Returns the slots of the newest round before this one; None if there are none."""
        if self._store is not None:
            found = self._store.load(self._client, before=before)
            return None if found is None else unflat(found)
        newest = newest_of(self._versions(), before)
        if not newest:
            return None
        return unflat(to_params(self._state.array_records[f"{self._prefix}{newest}"]))

    def save(self, kept: Mapping[str, Any], server_round: int) -> None:
        """Stores the slots after a round."""
        arrays: Params = {n: x.detach().cpu().clone() for n, x in flat(kept).items()}
        if self._store is not None:
            last = server_round - 1
            self._store.save(self._client, arrays, server_round=server_round, durable=last)
            return
        last = newest_of(self._versions(), server_round)
        for version in set(self._versions()) - {last}:
            del self._state[f"{self._prefix}{version}"]
        self._state[f"{self._prefix}{server_round}"] = ArrayRecord(arrays)

    def _versions(self) -> list[int]:
        keys = (key for key in self._state if key.startswith(self._prefix))
        return [int(key.removeprefix(self._prefix)) for key in keys]
