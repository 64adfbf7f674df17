"""Joins a Ray cluster by its address."""

import logging
import os
import socket

from engram.core.checks import must
from engram.core.machine import cores
from engram.settings.errors import Refused, one_line


def join(address: str) -> None:
    """Connects this process with a Ray cluster, unless it is connected already.

    Args:
        address: ``HOST:PORT``, ``auto`` for the one that runs on this machine, or ``local`` for one
            that begins here and ends with this process.

    Raises:
        Refused: If there is no cluster, or Ray cannot begin one here.
    """
    import ray  # noqa: PLC0415 - slow to import, rarely wanted

    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")  # sends no statistics, and prints no advice
    host, colon, port = address.rpartition(":")
    try:
        if colon and "/" not in host:  # without a listener, Ray would wait for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address,
            num_cpus=cores() if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            ignore_reinit_error=True,
        )
    except Exception as error:  # of any class, if Ray's processes do not begin in time
        if address != "local" and isinstance(error, OSError | ValueError | RuntimeError):
            expected = "the address of a cluster that answers"
            raise Refused(must("ray", address, expected)) from error
        why = f"Ray could not begin here, where it needs /dev/shm and /tmp: {one_line(str(error))}"
        raise Refused(why) from error
