"""Settings of a run: its length, its folders, and the machine that it is on."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from engram.core.checks import require
from engram.settings.fields import Amount, Count, Float, Settings, Whole, no_bool


def _numbers(value: object) -> str:
    text = str(value).replace(" ", "")
    ok = not isinstance(value, bool) and re.fullmatch(r"(\d{1,6}(,\d{1,6})*)?", text, re.ASCII)
    require(bool(ok), "without", value, "clients' numbers with commas, such as 3,5")
    return ",".join(map(str, sorted({int(number) for number in text.split(",") if number})))


class Folders(Settings):
    """Folders of runs, which commands and functions take by arguments of their own."""

    out: str = Field("", description="folder of the run's results; empty: a new one in runs/")
    resume: str = Field("", description="folder of a run to resume; empty: none")
    start_from: str = Field(
        "",
        description="folder of a run from whose last models this one starts: those of the server, "
        "and what it keeps for each client, where the method has the same; what clients keep, and "
        "means of it, begin anew. Empty: from the initial models",
    )


class RunSettings(Settings):
    """Length of a run, its evaluations and checkpoints, and its seed."""

    num_rounds: Count = Field(100, description="communication rounds")
    eval_every: Count = Field(
        10, description="rounds between evaluations; the last round is always evaluated"
    )
    checkpoint_every: Count = Field(10, description="rounds between checkpoints")
    seed: Annotated[int, BeforeValidator(no_bool)] = Field(
        0, ge=0, lt=2**32, description="root of every random stream"
    )
    timeout: Float = Field(
        3600.0,
        gt=0,
        le=10**8,
        description="seconds that a round waits for replies before it goes on without them",
    )
    min_clients: Whole = Field(
        0,
        description="fewest clients with which a run begins, and fewest replies of a round; with "
        "fewer the run stops, and can be resumed; 0: on nodes, a run begins with all that have "
        "enough rows, and a round needs one",
    )
    participation: str = Field(
        "",
        description="folder of a run whose participation a run in one process repeats: in each "
        "round, the clients that took part there; empty: cohorts are drawn",
    )
    without: Annotated[str, BeforeValidator(_numbers)] = Field(
        "",
        description="clients that have no part in the run, as if they had never been members, by "
        "number, with commas; empty: none",
    )

    @property
    def withdrawn(self) -> frozenset[int]:
        """``without`` as numbers."""
        return frozenset(int(number) for number in self.without.split(",") if number)

    @property
    def least_clients(self) -> int:
        """Fewest clients that a round begins with, and fewest usable replies that it ends with."""
        return max(1, self.min_clients)


def _known_device(value: str) -> str:
    require(bool(re.fullmatch(r"cpu|cuda(:\d+)?", value)), "device", value, "cpu, cuda or cuda:N")
    return value


class MachineSettings(Settings):
    """Device, threads and memory of a machine. Each may have values of its own."""

    data_dir: str = Field(
        "data", description="folder of torchvision's data sets; downloads go there"
    )
    device: Annotated[str, AfterValidator(_known_device)] = Field(
        "cpu", description="cpu, cuda, or cuda:N"
    )
    cpu_threads: Count = Field(
        1,
        le=256,
        description="torch threads of each process that trains; for small models more than 1 is "
        "slower, by far where processes share the cores",
    )
    cores: Whole = Field(
        0,
        le=1024,
        description="processes that train the clients of a round, in a run on one machine without "
        "nodes; 0: as many as pay. The same numbers to the bit, whatever it is",
    )
    memory_budget: Amount = Field(
        0.0,
        le=2**20,
        description="GiB that a process may use to train clients at once; 0: a quarter of what "
        "is free. With less, clients train in smaller blocks: the same numbers, to rounding",
    )
