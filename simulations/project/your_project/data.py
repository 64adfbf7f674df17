"""The data: read your own files here. A node calls this for the clients that it hosts alone."""

from typing import Any

import engram
import numpy as np
import numpy.typing as npt


@engram.data
def sites(client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the rows of one client: inputs (n, 8), and classes (n,)."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(100, 8)).astype(np.float32)
    own = np.array([3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]) + rng.normal(size=8)
    return x, (x @ own > 0).astype(np.int64)
