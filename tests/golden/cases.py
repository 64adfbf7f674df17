"""All cases by name; each is given a folder of its own, and returns what it found."""

from tests.golden import estimators, federated, studies

CASES = {
    **{f"run: {name}": case for name, case in federated.CASES.items()},
    **{
        f"library: {name}": lambda folder, case=case: case()
        for name, case in estimators.CASES.items()
    },
    **{f"study: {name}": case for name, case in studies.CASES.items()},
}

ROUGH = {
    **dict.fromkeys(
        [
            # The weights of the ensemble's learners are exponentials of sums of losses.
            "run: local-moml, universal",
            "run: fedavg, universal",
            "run: local-moml, carried, universal, clip",
            "study: universal-stream",
            # Differences of seeds' errors that almost agree.
            "study: sinewave",
            "study: sinewave, published",
        ],
        1e-3,
    ),
    # One of 20,000 queries, between whose two likeliest classes rounding decides.
    "study: one-shot": 2e-2,
    # Its networks take many steps, along which rounding grows; its choices are as recorded.
    "library: policy, meta-ban, paper": 2e-2,
}
"""How much of a number another processor may change, by case, where it is more than 1e-6.

Measured on an Intel Xeon, where each of the others is as recorded on an AMD EPYC.
"""
