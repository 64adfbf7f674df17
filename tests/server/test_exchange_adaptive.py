"""Adaptive sharing between sites: runs, compared with the pure exchange on the same rows."""

import numpy as np
import pytest

from engram.molar.exchange import answer, tell
from engram.molar.heterogeneity import REACH
from federation.data.tables import table_data
from tests.server.sites import run, settings


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_a_run_is_the_exchange_of_the_library(tmp_path, family):
    special = {"sharing": "adaptive", "exchanges": 3, "dataset": f"sparse-{family}"}
    special |= {"family": family}
    found, kept = run(tmp_path / "run", **special)
    experiment = settings(**special)
    rows = [rows.with_ones() for rows in table_data(experiment).train]
    told = None
    for _ in range(3):
        each = [tell(own, told, family=family, reach=REACH)[0] for own in rows]
        told = answer(each, told, reach=REACH, max_weight=experiment.max_weight)
    np.testing.assert_allclose(found["shared"]["coef"], told.center, rtol=1e-9, atol=1e-12)
    for client, own in enumerate(rows):
        _, coef = tell(own, told, family=family, reach=REACH)
        np.testing.assert_allclose(kept[client][0], coef, rtol=1e-9, atol=1e-12)
    assert found["loss-personal"] < found["loss-own"]


def test_adaptive_sites_need_a_threshold():
    with pytest.raises(ValueError, match="threshold-scale must be above 0 with sharing=adapt"):
        settings(sharing="adaptive", threshold_scale=0.0)
