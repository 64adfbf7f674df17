"""Tests; whoever runs them, wherever, they find the same surroundings.

What changes them goes before anything is imported: some libraries look at it once.
"""

import os

_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")
for _name in (
    *_PROXIES,
    *map(str.upper, _PROXIES),
    # Of terminals: how wide they are, and whether they have colors.
    *("LINES", "TERMINAL_WIDTH", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "RAY_ADDRESS", "PYTHONWARNINGS"),
    # Each of the processes that tests start would compile all sources again.
    "PYTHONDONTWRITEBYTECODE",
):
    os.environ.pop(_name, None)
# Processes that tests run beside each other would wait for each other's threads, here and in BLAS.
os.environ |= {"COLUMNS": "80", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
