"""Contract of users' own things on nodes over gRPC with rows of their own."""

import pytest

from engram.settings.fingerprint import source_root
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.loopback import LoopbackFederation
from tests.brought import test_guard, test_heads
from tests.brought.loop import check, experiment
from tests.processes.test_federation import run

pytestmark = pytest.mark.processes
# Those whose rows or slots a node reads or sends otherwise; the others: simulations/test_ray.py.
CHOSEN = (
    *("own metric", "two inputs", "string labels", "frozen layers and buffers"),
    *("mixed types", "frames, standardized"),
)


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    for plug_in in ("cases", "test_heads", "test_guard"):
        add_plugins(str(source_root() / "tests" / "brought" / plug_in))
    load_plugins()


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
