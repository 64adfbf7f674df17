"""The recorded numbers of every method that trains networks, on both engines, and resumed."""

import pytest

from tests.golden import methods
from tests.golden.cases import apart
from tests.golden.methods import ENGINES, KINDS, METHODS, TOLERANCE, name_of
from tests.golden.numbers import differences, plain, read

RECORDED = read()


@pytest.mark.parametrize("name", methods.CASES)
def test_the_numbers_are_as_recorded(name, tmp_path, pytestconfig):
    found = apart(RECORDED, name, tmp_path, exact=pytestconfig.getoption("exact"))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_gives_the_numbers_of_one_go(method, engine, tmp_path):
    """Within rounding: each of its parts may choose another way to train."""
    name = name_of(method, "personal", engine)
    ran = methods.resumed(method, "personal", engine, tmp_path / "run")
    again = plain(methods.numbers(ran, "personal", tmp_path))
    found = list(differences(RECORDED["cases"][name], again, tolerance=TOLERANCE, where=name))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree(method, kind):
    """Of what is recorded, as the tests above hold it."""
    one, other = (RECORDED["cases"][name_of(method, kind, engine)] for engine in ENGINES)
    assert not list(differences(one, other, tolerance=TOLERANCE, where=method))
    assert not list(differences(other, one, tolerance=TOLERANCE, where=method))


def test_only_one_method_refuses_a_kind():
    """FedBN is refused for a network without batch norm."""
    refused = {name for name in methods.CASES if "refused" in RECORDED["cases"][name]}
    assert refused == {name_of("fedbn", "partial", engine) for engine in ENGINES}


def test_what_the_names_of_clients_promise():
    """Some clients train in several rounds, one in none, and one is unseen."""
    for method in set(METHODS) - {"fedbn"}:
        case = RECORDED["cases"][name_of(method, "partial", "vectorized")]
        assert case["cohorts"] == [[3, 4, 6], [2, 4, 6], [0, 2, 4]]
        assert [name for name, unseen in case["clients"]["unseen"].items() if unseen] == ["c1"]
