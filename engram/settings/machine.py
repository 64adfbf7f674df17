"""Device, threads and memory of a machine. Each may have values of its own."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from engram.core.checks import require
from engram.settings.fields import Float, Int, Settings


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
    cpu_threads: Int = Field(
        1,
        ge=1,
        le=256,
        description="torch threads of each process that trains; for small models more than 1 is "
        "slower, by far where processes share the cores",
    )
    cores: Int = Field(
        0,
        ge=0,
        le=1024,
        description="processes that train the clients of a round, in a run on one machine without "
        "nodes; 0: as many as pay. The same numbers to the bit, whatever it is",
    )
    memory_budget: Float = Field(
        0.0,
        ge=0,
        le=2**20,
        description="GiB that a process may use to train clients at once; 0: a quarter of what "
        "is free. With less, clients train in smaller blocks: the same numbers, to rounding",
    )
