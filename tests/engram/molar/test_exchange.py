"""Exchanges of adaptive MOLAR: what sites tell, and what a server answers."""

import numpy as np
import pytest

from engram.molar.adaptive import adapt
from engram.molar.exchange import answer, tell
from engram.molar.simulation import linear_rows, logistic_rows
from engram.molar.site import Rows

REACH = 3.0


def sites(tasks=12, rows=30, dim=4, seed=0):
    """Tasks that agree, but for the first one's first coefficient."""
    rng = np.random.default_rng(seed)
    beta = np.tile(np.linspace(-1, 1, dim), (tasks, 1))
    beta[0, 0] += 5
    return [linear_rows(rng, own, rows, 1.0).with_ones() for own in beta], beta


def exchanged(tasks, count, *, family="linear", spoil=lambda found: found, **options):
    told = None
    for _ in range(count):
        found = [tell(rows, told, family=family, reach=REACH)[0] for rows in tasks]
        told = answer(spoil(found), told, reach=REACH, **options)
    return told, np.stack([tell(rows, told, family=family, reach=REACH)[1] for rows in tasks])


def test_exchanges_come_near_what_one_place_finds():
    tasks, beta = sites()
    whole = adapt(tasks, family="linear", c=REACH)
    for count, off in ((2, 0.15), (10, 0.06)):
        told, coefs = exchanged(tasks, count)
        np.testing.assert_allclose(told.center, whole.center, atol=off)
        np.testing.assert_allclose(coefs[:, :4], beta, atol=0.7)
        assert np.abs(coefs[1:, :4] - beta[1:]).mean() < 0.15
        assert abs(coefs[0, 0] - beta[0, 0]) < 0.7


def test_intercepts_scatter_and_columns_need_not():
    tasks, _ = sites()
    found = [tell(rows, None, family="linear", reach=REACH)[0] for rows in tasks]
    alike = [site._replace(coef=found[0].coef) for site in found]
    assert (answer(alike, None, reach=REACH).variance > 0).tolist() == [False] * 4 + [True]
    assert not answer(alike, None, reach=REACH, intercept=False).variance.any()


def test_sites_with_fewer_rows_than_columns_take_part():
    tasks, beta = sites(rows=4, dim=6, tasks=30)
    _, coefs = exchanged(tasks, 3)
    assert np.abs(coefs[1:, :6] - beta[1:]).mean() < 0.5 * np.abs(beta).mean()


def test_a_site_of_a_single_class_takes_part():
    rng = np.random.default_rng(0)
    tasks = [logistic_rows(rng, np.array([1.0, -1.0]), 60).with_ones() for _ in range(10)]
    tasks[0] = tasks[0]._replace(y=np.zeros(60))
    told, coefs = exchanged(tasks, 3, family="logistic")
    np.testing.assert_allclose(told.center[:2], [1, -1], atol=0.4)
    assert np.isfinite(coefs).all()
    assert coefs[0, 2] < coefs[1:, 2].min()


@pytest.mark.parametrize("options", [{"weights": "equal"}, {"max_weight": 5.0}, {}])
def test_a_site_that_lies_moves_the_center_little(options):
    tasks, _ = sites()

    def spoil(found):
        liar = found[3]._replace(coef=np.full(5, 1e9), scale=np.full(5, 1e-3))
        return [*found[:3], liar, *found[4:]]

    honest, _ = exchanged(tasks, 2, **options)
    told, _ = exchanged(tasks, 2, spoil=spoil, **options)
    np.testing.assert_allclose(told.center, honest.center, atol=0.6)


def test_a_constant_target_shows_no_noise_but_takes_what_others_share():
    tasks, _ = sites()
    flat = Rows(tasks[0].x, np.full(30, 2.0))
    with pytest.raises(ValueError, match="its target is constant"):
        tell(flat, None, family="linear", reach=REACH)
    told, _ = exchanged(tasks, 2)
    assert np.isfinite(tell(flat, told, family="linear", reach=REACH)[1]).all()
    with pytest.raises(ValueError, match="number of sites must be at least 1, got 0"):
        answer([], None, reach=REACH)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sigma", [0.0, 5e-324, 1e200, np.inf])
@pytest.mark.parametrize("max_weight", [2.0, np.inf])
def test_the_noise_of_one_site_overflows_nothing(sigma, max_weight):
    tasks, _ = sites()
    found = [tell(rows, None, family="linear", reach=REACH)[0] for rows in tasks]
    found[0] = found[0]._replace(sigma=sigma)
    told = answer(found, None, reach=REACH, max_weight=max_weight)
    assert all(np.isfinite(part).all() for part in told)
    assert (told.error > 0).all()
