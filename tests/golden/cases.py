"""All cases by name; each is given a folder of its own, and returns what it found."""

import torch
from threadpoolctl import threadpool_limits

from tests.golden import estimators, federated, methods, studies
from tests.golden.numbers import differences, plain

CASES = {
    **{f"run: {name}": case for name, case in federated.CASES.items()},
    **{
        f"library: {name}": lambda folder, case=case: case()
        for name, case in estimators.CASES.items()
    },
    **{f"study: {name}": case for name, case in studies.CASES.items()},
    **methods.CASES,
}

ROUGH = {
    **dict.fromkeys(
        [
            # The weights of the ensemble's learners are exponentials of sums of losses.
            "run: local-moml, universal",
            "run: fedavg, universal",
            "run: pfedme, universal",
            "run: local-moml, carried, universal, clip",
            "study: universal-stream",
            # Differences of seeds' errors that almost agree.
            "study: sinewave",
            "study: sinewave, published",
        ],
        (1e-3, 1e-9),
    ),
    # A few of 20,000 queries, between whose two likeliest classes rounding decides.
    **dict.fromkeys(["study: one-shot", "study: one-shot, first-order"], (1e-6, 2e-4)),
    # Parameters in single precision, some of them divided by the roots of small sums of squares.
    **dict.fromkeys(methods.CASES, methods.TOLERANCE),
}
"""Tolerances of other processors, by case: relative, and absolute.

Measured on an Intel Xeon, and with kernels for AVX2 in place of those for AVX512; where it is more
than (1e-6, 1e-9).
"""

CHAOTIC = {"library: policy, meta-ban, paper"}
"""Cases in which rounding grows until other arms are chosen: they are compared to the bit only."""


def apart(recorded, name, folder, *, exact):
    """Runs a case in an empty folder; returns the differences from the recorded numbers.

    If ``exact``, one in the last bit counts, too.
    """
    assert torch.get_num_threads() == 1
    with threadpool_limits(1):
        found = plain(CASES[name](folder))
    tolerance = None if exact else ROUGH.get(name, (1e-6, 1e-9))
    return list(differences(recorded["cases"][name], found, tolerance=tolerance, where=name))
