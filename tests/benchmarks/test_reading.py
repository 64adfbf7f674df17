"""The benchmark of tables, in small: what is read is what was written."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import reading


@pytest.mark.parametrize("how", ["schema", "alone"])
def test_every_way_reads_the_same_inputs(tmp_path, how):
    path = reading.write(tmp_path, 50, 3)
    found = reading.read(path, how)
    np.testing.assert_array_equal(found, pd.read_csv(path)[["x0", "x1", "x2"]])


def test_a_turn_takes_time():
    assert reading.seconds(lambda: sum(range(1000)), 2) >= 0
