"""A resident worker of a cluster: it trains chunks of a run's rounds for a process elsewhere."""

import os
import pickle
import socket
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from engram.client.hosts import Opening, host_of
from engram.client.hosts.local import LocalHost
from engram.cohort.trainer.client_memory import Lent
from engram.cohort.trainer.shared_tensors import packed, unpacked
from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.guards.noise import simulated_noise
from engram.settings.errors import EngramError, one_line
from engram.settings.fingerprint import fingerprint, source_root
from engram.settings.logs import log_plainly
from engram.settings.plugins import VARIABLE, load_plugins

if TYPE_CHECKING:
    from engram.data.federated import FederatedData


class RemoteWorker:
    """Has the data of all clients, as this machine reads them; memories come with each chunk."""

    def begin(self, source: str, plugins: str, home: str, rows: int, run: bytes) -> str:
        """Prepares to train a run's rounds; returns why it cannot, or "".

        Args:
            source: The fingerprint of the other process's source.
            plugins: Its plug-ins, as its environment has them.
            home: The folder from which names of files count, if this machine has it.
            rows: Its ``digest_of`` the data.
            run: The experiment and its engine, pickled: nothing of another source is read.
        """
        here = socket.gethostname()
        with suppress(OSError):
            os.chdir(home)
        os.environ[VARIABLE] = plugins
        try:
            load_plugins()
            if (mine := fingerprint()) != source:
                return f"{here} runs {mine} from {source_root()}, but this process runs {source}"
            experiment, engine = pickle.loads(run)
            log_plainly()
            training_from_now_on(experiment.cpu_threads)
            self._store = Lent()
            noise = simulated_noise(experiment.seed)
            opening = Opening(experiment, self._store, engine=engine, noise=noise)
            self._host = cast("LocalHost", host_of(opening))
            if digest_of(self._host.trainer.given) != rows:
                return f"{here} reads other rows of {experiment.source.described} than this process"
        except EngramError as error:
            return f"{here}: {error}"
        except Exception as error:  # a user's plug-in, or a module that this machine lacks
            return f"{here}: {one_line(f'{type(error).__name__}: {error}')}"
        return ""

    def train(self, back: int, count: int, *pieces: bytes) -> list[bytes]:
        """Trains a chunk.

        Args:
            back: Number of pieces to return.
            count: Number of the first pieces that are the chunk and the memories of its clients;
                the others are the round's ``Asked``, its units, and the way to train.
            pieces: Both of them, packed.

        Returns:
            The chunk's ``Parts`` and the memories that it made, packed, in pieces.
        """
        chunk, self._store.lent = unpacked(b"".join(pieces[:count]))
        asked, units, way = unpacked(b"".join(pieces[count:]))
        self._store.made = {}
        trainer = self._host.in_units(units)
        trainer.way = way
        found = packed((trainer.chunk(asked, chunk), self._store.made))
        return in_pieces(found, back)


def in_pieces(data: bytes, count: int) -> list[bytes]:
    """Cuts bytes in pieces of nearly equal size."""
    ends = [len(data) * i // count for i in range(count + 1)]
    return [data[start:end] for start, end in pairwise(ends)]


def digest_of(data: "FederatedData") -> int:
    """Returns a digest of the clients' numbers of rows."""
    parts = (data.train, data.test)
    return hash(tuple(len(rows) for part in parts for rows in part.rows))
