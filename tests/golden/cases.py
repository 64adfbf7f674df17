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
