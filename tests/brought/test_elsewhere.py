"""Contract of users' own things on Ray, and on nodes over gRPC with rows of their own."""

import pytest

from engram.settings.fingerprint import source_root
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.loopback import LoopbackFederation
from tests.brought import test_guard, test_heads
from tests.brought.cases import CASES
from tests.brought.loop import check, experiment
from tests.processes.test_federation import run
from tests.simulations.test_ray import SuperLink, run_several

pytestmark = pytest.mark.processes
# On Ray are all of them; over gRPC those whose rows or slots a node reads or sends otherwise.
CHOSEN = (
    *("own metric", "two inputs", "string labels", "frozen layers and buffers"),
    *("mixed types", "frames, standardized"),
)


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    for plug_in in ("cases", "test_heads", "test_guard"):
        add_plugins(str(source_root() / "tests" / "brought" / plug_in))
    load_plugins()


def test_on_ray(tmp_path):
    experiments = {name: experiment(name, tmp_path) for name in CASES}
    configs = [
        e.to_config() | {"out": str(tmp_path / "ray" / e.model)} for e in experiments.values()
    ]
    for name, of in (("heads", test_heads), ("guard", test_guard)):
        configs.append(of.experiment().to_config() | {"out": str(tmp_path / name)})
    with SuperLink(tmp_path) as superlink:
        printed = run_several(superlink, tmp_path, configs)
    assert (tmp_path / "heads" / "results.json").is_file(), printed
    test_heads.assert_as_here(tmp_path / "heads", tmp_path / "here")
    test_guard.assert_as_here(tmp_path / "guard", tmp_path / "here-guarded")
    for name, e in experiments.items():
        assert (tmp_path / "ray" / e.model / "results.json").is_file(), printed
        check(name, e, tmp_path / "ray" / e.model)


def test_on_nodes(tmp_path):
    options = ["--set", f"data-dir={tmp_path}"]
    with LoopbackFederation(tmp_path / "fed", clients=2, options=options) as federation:
        for number in range(2):  # a client has a single row, which updates and scores give away
            rules = "least-drawn = 1\nleast-count = 1\n"
            (tmp_path / "fed" / f"client-{number}" / "policy.toml").write_text(rules)
        for name in CHOSEN:
            more = {"min_clients": 4, "timeout": 600.0}
            e = experiment(name, tmp_path).model_copy(update=more)
            record = run(federation, e, tmp_path / "there" / e.model)
            assert all(row["left-out"] == 0 for row in record.rows()[1:]), name
            check(name, e, tmp_path / "there" / e.model)
        all_of = {"min_clients": 3, "timeout": 600.0}
        run(federation, test_heads.experiment(**all_of), tmp_path / "heads")
        run(federation, test_guard.experiment(**all_of), tmp_path / "guard")
    test_heads.assert_as_here(tmp_path / "heads", tmp_path / "here")
    test_guard.assert_as_here(tmp_path / "guard", tmp_path / "here-guarded")
