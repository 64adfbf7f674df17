"""Exchanges of adaptive MOLAR: what sites tell, and what a server answers."""

from functools import partial

import numpy as np
import pytest

from engram.tables.exchange import STILL, answer, odd_sites, personal, tell
from engram.tables.site import Rows, estimate_site
from tests.evidence.exchange import in_one_place
from tests.samples import entry
from tests.tables.simulated import linear_rows, logistic_rows

REACH = 3.0


def sites(tasks=12, rows=30, dim=4, seed=0):
    """Tasks that agree, but for the first one's first coefficient."""
    rng = np.random.default_rng(seed)
    beta = np.tile(np.linspace(-1, 1, dim), (tasks, 1))
    beta[0, 0] += 5
    return [linear_rows(rng, own, rows, 1.0).with_ones() for own in beta], beta


def classes(tasks=8, rows=80, seed=0):
    rng = np.random.default_rng(seed)
    beta = np.array([1.0, -1.0])
    return [logistic_rows(rng, beta, rows).with_ones() for _ in range(tasks)]


def exchanged(tasks, *, family="linear", count=30, spoil=lambda told: told, **options):
    """Returns the last answer, and each site's coefficients."""
    options = {"family": family, "reach": REACH} | options
    told = None
    for _ in range(1 if family == "linear" else count):
        each = [tell(rows, told, family=family, reach=REACH) for rows in tasks]
        found = answer(spoil(each), told, **options)
        told = found.told
        if told.change <= STILL:
            break
    return found, np.stack([personal(rows, told, family=family, reach=REACH) for rows in tasks])


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_sites_fit_what_one_place_fits_to_a_millionth_of_a_standard_error(family):
    tasks = sites()[0] if family == "linear" else classes()
    moved = [rows._replace(x=rows.x * [12, *[1] * (rows.x.shape[1] - 1)]) for rows in tasks]
    for rows in moved:
        rows.x[:, 0] += 62
    coefs, center, error, _ = in_one_place(moved, family)
    found, own = exchanged(moved, family=family)
    assert found.told.change <= STILL
    assert (np.abs(found.coef - center) <= 1e-6 * error).all()
    assert (np.abs(own - coefs) <= 1e-6 * error).all()


def test_columns_need_no_centers():
    """Where all tasks agree, slopes and their errors are those of least squares with task means."""
    rng = np.random.default_rng(1)
    tasks = [linear_rows(rng, np.array([0.4, -0.1]), 200, 1.0).with_ones() for _ in range(4)]
    far = [rows._replace(x=rows.x * [12, 18, 1] + [62, 130, 0]) for rows in tasks]
    plain, raw = (exchanged(each)[0] for each in (tasks, far))
    np.testing.assert_allclose(raw.coef[:2] * [12, 18], plain.coef[:2], rtol=1e-9)
    np.testing.assert_allclose(raw.error[:2] * [12, 18], plain.error[:2], rtol=1e-7)
    within = [np.column_stack([rows.x[:, :2], rows.y]) for rows in tasks]
    x = np.concatenate([each - each.mean(axis=0) for each in within])
    coef = np.linalg.lstsq(x[:, :2], x[:, 2])[0]
    residual = x[:, 2] - x[:, :2] @ coef
    variance = residual @ residual / (len(x) - 6) * np.linalg.inv(x[:, :2].T @ x[:, :2])
    np.testing.assert_allclose(plain.coef[:2], coef, atol=0.5 * variance[0, 0] ** 0.5)
    np.testing.assert_allclose(plain.error[:2], np.sqrt(np.diag(variance)), rtol=0.4)


def test_a_capped_weight_leaves_a_site_its_own_estimate():
    for sizes in [(50_000, 250), (50_000, 250, 250)]:
        with entry(sizes):
            rng = np.random.default_rng(3)
            tasks = [linear_rows(rng, np.array([0.4]), n, 4.0).with_ones() for n in sizes]
            tasks[1] = tasks[1]._replace(y=tasks[1].y - 0.6 * tasks[1].x[:, 0])
            found, own = exchanged(tasks, max_weight=5.0)
            assert found.capped.tolist() == [True] + [False] * (len(sizes) - 1)
            alone = estimate_site(tasks[0])
            assert (np.abs(own[0] - alone.coef) <= 1.96 * alone.standard_error).all()
            assert not exchanged(tasks)[0].capped.any()


def test_a_column_that_others_give_is_dropped_at_all_sites():
    tasks, _ = sites()
    more = [rows._replace(x=np.insert(rows.x, 2, 2 * rows.x[:, 0], axis=1)) for rows in tasks]
    (plain, own), (found, kept) = exchanged(tasks), exchanged(more)
    (dropped,) = found.dropped
    assert {dropped.column, *dropped.others} == {0, 2}
    names = [k for k in range(6) if k != dropped.column]
    unit = np.where(np.arange(5) == 0, 2.0 if dropped.column == 0 else 1.0, 1.0)
    if dropped.column == 0:
        names = [2, 1, 3, 4, 5]
    np.testing.assert_allclose(found.coef[names] * unit, plain.coef, rtol=1e-6)
    np.testing.assert_allclose(kept[:, names] * unit, own, rtol=1e-5, atol=1e-6)
    assert found.error[dropped.column] == np.inf
    assert (kept[:, dropped.column] == 0).all()


@pytest.mark.full
def test_sites_with_fewer_rows_than_columns_take_part():
    tasks, beta = sites(rows=5, dim=6, tasks=20)
    _, coefs = exchanged(tasks)
    assert np.abs(coefs[1:, :6] - beta[1:]).mean() < 0.5 * np.abs(beta).mean()


def test_a_site_of_a_single_class_takes_part():
    tasks = classes(tasks=10, rows=60)
    tasks[0] = tasks[0]._replace(y=np.zeros(60))
    found, coefs = exchanged(tasks, family="logistic")
    np.testing.assert_allclose(found.coef[:2], [1, -1], atol=0.4)
    assert np.isfinite(coefs).all()
    assert coefs[0, 2] < coefs[1:, 2].min()


def test_a_site_that_lies_moves_the_center_little():
    tasks, _ = sites()

    def spoil(told):
        lie = told[3].triangle.copy()
        lie[:, 0] *= 30
        lie[:, -1] *= -30
        return [*told[:3], told[3]._replace(triangle=lie), *told[4:]]

    for max_weight in (1.0, 5.0, np.inf):
        with entry(max_weight):
            honest, _ = exchanged(tasks, max_weight=max_weight)
            found, _ = exchanged(tasks, spoil=spoil, max_weight=max_weight)
            np.testing.assert_allclose(found.coef[1:4], honest.coef[1:4], atol=0.6)


def test_a_site_in_other_units_is_named_with_its_column_in_every_exchange():
    tasks, _ = sites()
    tasks[2] = tasks[2]._replace(x=tasks[2].x * [1, 1e6, 1, 1, 1])
    tasks[5] = tasks[5]._replace(y=tasks[5].y + 1e9)
    each = [tell(rows, None, family="linear", reach=REACH) for rows in tasks]
    assert odd_sites(dict(enumerate(each)), intercept=True) == {2: 1, 5: 5}
    tasks, told = classes(), None
    tasks[3] = tasks[3]._replace(x=tasks[3].x * [1e6, 1, 1])
    for _ in range(2):
        each = [tell(rows, told, family="logistic", reach=REACH) for rows in tasks]
        assert odd_sites(dict(enumerate(each)), intercept=True) == {3: 0}
        told = answer([*each[:3], *each[4:]], told, family="logistic", reach=REACH).told


@pytest.mark.full
@pytest.mark.filterwarnings("error")
def test_counts_may_be_of_any_size():
    for mean in [0.1, 10.0, 1e6]:
        with entry(mean):
            rng = np.random.default_rng(0)
            tasks = []
            for _ in range(4):
                age = rng.normal(62, 12, (200, 1))
                rate = mean * np.exp(0.02 * (age[:, 0] - 62) + 0.1 * rng.normal())
                tasks.append(Rows(age, rng.poisson(rate).astype(float)).with_ones())
            found, _ = exchanged(tasks, family="poisson")
            assert found.told.change <= STILL
            assert abs(found.coef[0] - 0.02) <= 3 * found.error[0] <= 3 * 0.01


def test_a_constant_target_shows_no_noise_but_takes_what_others_share():
    tasks, _ = sites()
    flat = Rows(tasks[0].x, np.full(30, 2.0))
    with pytest.raises(ValueError, match="its target is constant"):
        tell(flat, None, family="linear", reach=REACH)
    found, _ = exchanged(tasks)
    assert np.isfinite(personal(flat, found.told, family="linear", reach=REACH)).all()
    with pytest.raises(ValueError, match="number of sites must be at least 1, got 0"):
        answer([], None, family="linear", reach=REACH)


def with_noise(told, length):
    lie = told[0].triangle.copy()
    lie[-1, -1] = length
    return [told[0]._replace(triangle=lie), *told[1:]]


@pytest.mark.filterwarnings("error")
def test_the_noise_of_one_site_overflows_nothing():
    for length in [0.0, 1e-30, 1e30]:
        for max_weight in [2.0, np.inf]:
            with entry(length, max_weight):
                spoil = partial(with_noise, length=length)
                found, _ = exchanged(sites()[0], spoil=spoil, max_weight=max_weight)
                assert np.isfinite(found.coef).all()
                assert (found.error > 0).all()
