"""``import engram``: experiments on data in memory, and what came of them."""

import io
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html import escape
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.common.logger import console_handler
from IPython.core.formatters import DisplayFormatter
from torch import nn

import engram
import engram.bandits
import engram.meta
import engram.online
import engram.tables
from engram.cli.next_command import show_found
from engram.networks.registry import NETWORKS
from engram.settings.errors import DataError, Refused, RunStopped
from tests.samples import entry

QUICK = {"num_rounds": 3, "local_steps": 2, "hidden": "6", "progress": False, "eval_every": 1}


def clients(count=4, rows=40, seed=0):
    """Two kinds of clients, which call the same thing by other names."""
    rng = np.random.default_rng(seed)
    found = []
    for client in range(count):
        x = rng.normal(size=(rows, 5)).astype(np.float32)
        found.append((x, (x[:, client % 2] > 0).astype(int)))
    return found


def test_names_come_when_they_are_looked_at():
    for name in sorted({*engram.__all__}):
        with entry(name):
            assert name in dir(engram)
            room, *_ = getattr(engram, name).__module__.split(".")
            assert room in {"engram", "federation", "simulations", "pydantic"}


def test_the_families_give_their_own():
    for package in (engram.tables, engram.online, engram.bandits, engram.meta):
        assert dir(package) == package.__all__ == sorted(package.__all__)
        for name in package.__all__:
            own = getattr(package, name).__name__
            assert own.lower().replace("_", "") == name.lower().replace("_", "")
        with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            _ = package.Nothing


def test_a_function_is_given_though_a_module_is_called_as_it_is():
    import_module("engram.bandits.linucb")
    from engram.bandits import graph, linucb

    assert linucb(dim=2, alpha=0.1, lam=1.0).choose
    assert graph.__name__ == "engram.bandits.graph"


def test_importing_it_is_light():
    heavy = "'torch', 'flwr', 'numpy', 'pydantic'"  # the latter: of the commands, --help is quick
    code = f"import engram.cli.cli, sys; print(sys.modules.keys() & {{{heavy}}} or [])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_list_of_clients_is_simulated(tmp_path):
    run = engram.simulate(clients(), method="fedavg", eta=0.3, out=tmp_path / "run", **QUICK)
    assert (run.experiment.num_clients, run.experiment.partition) == (4, "natural")
    assert isinstance(run.metrics, pd.DataFrame)
    assert run.metrics.index.tolist() == [0, 1, 2, 3]
    assert run.metrics["accuracy"].notna().all()
    assert run.clients.index.tolist() == [0, 1, 2, 3]
    assert "fedavg + fine-tuning" in str(run)
    assert run.clients["accuracy"].between(0, 1).all()
    assert not run.clients["unseen"].any()
    assert {leaf.dtype for leaf in run.model.values()} == {torch.float32}
    assert run.plot().axes[0].get_xlabel() == "communication round"
    again = engram.load_run(tmp_path / "run")
    assert again.results == run.results
    assert "fedavg, finished" in repr(again)


def test_a_scripts_log_has_no_color_codes_and_no_roster(tmp_path, monkeypatch, warnings_of_engram):
    monkeypatch.setattr(console_handler, "colored", True)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    engram.simulate(clients(), method="fedavg", out=tmp_path / "run", **QUICK)
    assert not console_handler.colored
    assert warnings_of_engram.messages == []


def test_clients_may_have_names_and_rows_be_given_out(tmp_path):
    named = dict(zip(("park", "lake", "hill", "port"), clients(), strict=True))
    one = engram.simulate(clients(), method="fedavg", out=tmp_path / "one", **QUICK)
    two = engram.simulate(named, method="fedavg", out=tmp_path / "two", **QUICK)
    assert two.clients.index.tolist() == ["park", "lake", "hill", "port"]
    assert two.clients.index.name == one.clients.index.name == "client"
    pd.testing.assert_frame_equal(
        one.clients, two.clients.reset_index(drop=True), check_names=False
    )
    of = [two.personal_model("hill"), one.personal_model(2)]
    assert torch.equal(*(model["dense0.weight"] for model in of))
    assert torch.equal(*(one.personal_model(c)["dense0.weight"] for c in ("2", 2)))
    with pytest.raises(Refused, match="client must be one of park, lake, hill, port, got 'elm'"):
        two.personal_model("elm")
    with pytest.raises(Refused, match="client must be one of park, lake, hill, port, got 2"):
        two.personal_model(2)  # a position is no name
    x, y = (np.concatenate(part) for part in zip(*clients(), strict=True))
    given_out = engram.simulate(
        (x, y), partition="iid", num_clients=4, clients_per_round=4, out=tmp_path / "x", **QUICK
    )
    assert given_out.experiment.method == next(iter(engram.methods()))
    assert len(given_out.clients) == 4


class Rows(torch.utils.data.Dataset):
    """Rows of a client, one at a time; some cannot be read."""

    def __init__(self, x, y, bad=()):
        self.x, self.y, self.bad = x, y, bad

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        if row in self.bad:
            raise OSError(f"scan{row}.dcm is no image")
        return torch.from_numpy(self.x[row]), int(self.y[row])


def test_data_sets_of_clients_give_the_numbers_of_arrays(tmp_path):
    names = ("park", "lake", "hill", "port")
    arrays = engram.simulate(
        dict(zip(names, clients(), strict=True)), method="fedavg", out=tmp_path / "one", **QUICK
    )
    held = {name: Rows(x, y) for name, (x, y) in zip(names, clients(), strict=True)}
    drawn = engram.simulate(held, method="fedavg", out=tmp_path / "two", **QUICK)
    assert drawn.clients.equals(arrays.clients)
    assert drawn.metrics.drop(columns="ms").equals(arrays.metrics.drop(columns="ms"))
    x, y = clients()[0]
    together = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    one = engram.simulate(
        together, method="fedavg", partition="iid", num_clients=2, clients_per_round=2, **QUICK
    )
    two = engram.simulate(
        (x, y), method="fedavg", partition="iid", num_clients=2, clients_per_round=2, **QUICK
    )
    assert one.clients.equals(two.clients)


def test_a_row_of_a_data_set_that_cannot_be_read_is_named(tmp_path):
    held = [Rows(x, y) for x, y in clients()]
    held[2].bad = range(1, 40)
    held[2].targets = held[2].y
    message = r"client 2: row \d+ cannot be read: scan\d+\.dcm is no image"
    with pytest.raises(RunStopped, match=message):
        engram.simulate(held, method="fedavg", out=tmp_path / "run", **QUICK)
    with pytest.raises(Refused, match="or a data set of every client"):
        engram.simulate([held[0], clients()[1]], method="fedavg", **QUICK)
    with pytest.raises(DataError, match="tables must be given as arrays"):
        engram.simulate(held, method="molar", progress=False)


def test_methods_are_compared(tmp_path, capsys):
    found = engram.compare(
        clients(), methods=["fedavg", "pfedme"], seeds=2, inner_steps=2, out=tmp_path / "c", **QUICK
    )
    names = ("local", "fedavg", "pfedme")
    rows = [f"{name}{end}" for name in names for end in ("", " + fine-tuning")]
    assert found.table.index.tolist() == rows
    assert found.table["runs"].tolist() == [2] * 6
    each = [run.results["accuracy"] for run in found.runs["pfedme"]]
    last = engram.load_comparison(tmp_path / "c", round="last").table
    assert last.loc["pfedme", "accuracy"] == pytest.approx(np.mean(each))
    assert [run.experiment.seed for run in found.runs["fedavg"]] == [0, 1]
    assert found.runs["pfedme"][0].experiment.own.inner_steps == 2
    assert found.plot().axes
    show_found(tmp_path / "c", as_json=True)  # as `engram show` does
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])["methods"]
    assert [row["accuracy"] for row in shown] == found.table["accuracy"].tolist()
    first, *lines = str(found).splitlines()
    assert repr(found) == f"Comparison({str(tmp_path / 'c')!r}: local, fedavg, pfedme)"
    assert first == found.summary().attrs["answer"]
    served = found.table.loc["pfedme", "accuracy"]
    line = next(line for line in lines if line.startswith(" pfedme  "))
    assert f" {100 * served:.1f} ± " in line
    one = str(found.runs["pfedme"][0]).splitlines()
    assert one[0].endswith("pfedme-seed0': pfedme, finished)")
    assert any(line.startswith(" pfedme ") for line in one)
    with pytest.raises(Refused, match="compare takes methods that train networks, got molar"):
        engram.compare(clients(), methods=["molar"])
    with pytest.raises(Refused, match=r"^nu is for a method that does not take part: meta-ban$"):
        engram.compare(clients(), methods=["ditto"], nu=3.0)


def test_calls_from_a_thread_of_the_callers_are_answered(tmp_path):
    """Ctrl-C comes to the main thread alone, where Python lets it be handled."""
    quick = {**QUICK, "progress": True, "num_rounds": 1}
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(engram.simulate, clients(), method="fedavg", eta=-1.0, **quick)
        with pytest.raises(Refused, match="eta must be greater than 0, got -1"):
            refused.result()
        two = {"methods": "fedavg", "seeds": 1, "references": "none", "out": tmp_path / "c"}
        assert list(pool.submit(engram.compare, clients(), **two, **quick).result().runs)


def test_a_method_in_a_comparison_may_have_settings_of_its_own(tmp_path):
    """What is one method's counts for it, wherever it stands; what is for all, for the others."""
    ways = {
        "table": {"methods": {"ditto": {"eta": 0.3, "batch_size": 7}, "fedavg": {}}},
        "beside": {"methods": ["ditto"], "ditto": {"eta": 0.3, "batch-size": 7}},
        "dotted": {"methods": "ditto", "ditto.eta": 0.3, "ditto.batch_size": 7},
    }
    for name, way in ways.items():
        found = engram.compare(clients(), seeds=1, out=tmp_path / name, **way, **QUICK, eta=0.2)
        used = {method: found.runs[method][0].experiment for method in found.runs}
        assert [used[name].own.eta for name in ("ditto", "fedavg", "local")] == [0.3, 0.2, 0.2]
        assert [used[name].batch_size for name in ("ditto", "fedavg", "local")] == [7, 5, 5]
    run = engram.simulate(
        clients(), method="ditto", ditto={"eta": 0.3}, out=tmp_path / "r", **QUICK
    )
    again = engram.simulate(clients(), resume=run.folder, ditto={"eta": 0.3}, num_rounds=4)
    assert (again.experiment.own.eta, again.experiment.num_rounds) == (0.3, 4)


def normed():
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


COLUMNS = {  # of a network with batch norm: whether there is a common model, and a fine-tuned one
    "local": (False, True),
    "fedavg": (True, True),
    "fedbn": (False, True),
    "fedbabu": (True, False),
    "fedem": (False, False),
}


def test_the_frame_says_what_the_terminal_does(tmp_path):
    found = engram.compare(
        clients(), methods=list(COLUMNS), model=normed, seeds=1, out=tmp_path / "c", **QUICK
    )
    told = re.finditer(r"^ (\S.*?) +(?=[\d-].*$)(.*)$", str(found), re.MULTILINE)
    lines = {match[1]: match[2] for match in told}
    for method, (common, tuned) in COLUMNS.items():
        results = found.runs[method][0].results
        assert ("accuracy-common" in results, "accuracy-tuned" in results) == (common, tuned)
        rows = {method: ""} | ({f"{method} + fine-tuning": "-tuned"} if tuned else {})
        assert [name for name in found.table.index if name.split()[0] == method] == list(rows)
        for name, which in rows.items():
            row, (mean, _, spread, *rest) = found.table.loc[name], lines[name].split()[-10:]
            assert (mean, spread) == (
                f"{100 * row['accuracy']:.1f}",
                f"{100 * row['accuracy-std']:.1f}",
            )
            selected = results[f"selected{which}"]
            assert row["accuracy"] == selected[f"accuracy{which}"]
            each = selected["clients"][f"accuracy{which}"]
            assert row["accuracy"] == pytest.approx(np.mean(each))
            shown = rest[-5]  # before seeds, KiB, and two of milliseconds
            assert shown == (f"{100 * row['accuracy-common']:.1f}" if common else "-")
            assert np.isnan(row["accuracy-common"]) == (not common)
    assert not any("tuned" in column for column in found.table)


def test_a_run_that_diverges_keeps_no_other_from_being_compared(tmp_path):
    special = {"methods": "ditto", "lambda_": 1e30, "seeds": 1, "out": tmp_path / "c"}
    found = engram.compare(clients(), **special, **QUICK)
    assert list(found.runs) == ["fedavg", "local"]
    (words,) = found.stopped
    assert words.startswith("ditto with seed 0: round 1 diverged")
    assert str(found).splitlines()[-1] == f"stopped: {words}"
    assert [name for name in found.table.index if "+" not in name] == ["fedavg", "local"]


def test_every_client_has_a_model_of_its_own(tmp_path):
    for method in ("fedavg", "pfedme", "local-moml"):
        special = {"memory": "carry"} if method == "local-moml" else {}
        quick = {**QUICK, **special, "clients_per_round": 4, "out": tmp_path / method}
        with entry(method):
            run = engram.simulate(clients(), method=method, **quick)
            own = [run.personal_model(client) for client in range(4)]
            assert all(model.keys() == run.model.keys() for model in own)
            alike = torch.equal(own[0]["dense0.weight"], own[1]["dense0.weight"])
            assert alike == (method == "fedavg")  # which serves the common model as it is
            assert alike == torch.equal(own[0]["dense0.weight"], run.model["dense0.weight"])
            with pytest.raises(Refused, match=r"client must be in 0\.\.3, got 4"):
                run.personal_model(4)


@pytest.mark.parametrize("kind", [int, str])
def test_clients_that_are_named_by_numbers_are_found_by_these(tmp_path, kind):
    names, quick = [10, 2, 7, 1], {**QUICK, "clients_per_round": 3, "unseen_clients": 1}
    data = dict(zip(map(kind, names), clients(), strict=True))
    one = engram.simulate(clients(), method="ditto", out=tmp_path / "one", **quick)
    two = engram.simulate(data, method="ditto", out=tmp_path / "two", **quick)
    assert two.clients.index.tolist() == names
    assert two.clients["unseen"].tolist() == one.clients["unseen"].tolist()
    assert two.clients["unseen"].sum() == 1
    for number, name in enumerate(names):
        plain = one.personal_model(number)["dense0.weight"]
        for called in (name, str(name), np.int64(name)):
            assert torch.equal(two.personal_model(called)["dense0.weight"], plain)
    for stranger in (0, "3", -1):
        with pytest.raises(Refused, match="client must be one of 10, 2, 7, 1, got"):
            two.personal_model(stranger)
    folder = two.export(2, out=tmp_path / "of-2")
    weights = engram.load_model(folder).state_dict()
    plain = engram.load_model(one.export(1, out=tmp_path / "of-1")).state_dict()
    assert all(torch.equal(weights[name], plain[name]) for name in plain)


def test_unseen_clients_are_those_that_are_named(tmp_path):
    data = dict(zip(("park", "lake", "hill"), clients()[:3], strict=True))
    data["moor"] = clients()[3]
    names = {**QUICK, "clients_per_round": 2}
    run = engram.simulate(data, method="fedavg", unseen=["hill", "moor"], out=tmp_path, **names)
    assert run.clients.index[run.clients["unseen"]].tolist() == ["hill", "moor"]
    rows = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    assert {client for row in rows for client in row.get("cohort", ())} == {0, 1}
    told = r"unseen must be some of the clients: .park, lake, hill, moor."
    for unseen in ["hill, 3", ["hill", 3], ("3", "hill")]:
        with entry(unseen), pytest.raises(Refused, match=told):
            engram.simulate(data, method="fedavg", unseen=unseen, **names)


def test_a_table_of_each_client_is_regressed_on(tmp_path):
    rng = np.random.default_rng(1)
    tables = {}
    for name in ("park", "lake", "hill"):
        x = rng.normal(size=(200, 3))
        tables[name] = (x, x @ [1.0, -2.0, 3.0] + 0.1 * rng.normal(size=200))
    run = engram.simulate(tables, method="molar", out=tmp_path / "run", progress=False)
    np.testing.assert_allclose(run.results["shared"]["coef"][:3], [1, -2, 3], atol=0.05)
    coef = [float(run.personal_model("park")[f"x{k}"][0]) for k in range(3)]
    np.testing.assert_allclose(coef, [1, -2, 3], atol=0.1)
    assert sorted(run.clients.index) == ["hill", "lake", "park"]
    assert run.clients.index.tolist() == run.results["clients"]["names"]
    assert run.personal_model("hill").keys() == run.personal_model("lake").keys()
    assert run.plot().axes[0].get_xlabel() == run.plot("losses").axes[0].get_xlabel() == "site"
    with pytest.raises(Refused, match="metric must be one of losses, forest, got 'accuracy'"):
        run.plot("accuracy")


def test_a_run_goes_on_with_the_same_data_and_no_other(tmp_path):
    settings = QUICK | {"method": "pfedme", "clients_per_round": 4}
    whole = engram.simulate(clients(), out=tmp_path / "whole", **settings)
    folder = tmp_path / "parts"
    engram.simulate(clients(), out=folder, **settings | {"num_rounds": 1})
    with pytest.raises(Refused, match="cannot go on with other settings: dataset was 'memory:"):
        engram.simulate(clients(seed=1), resume=folder, **settings)
    parts = engram.simulate(clients(), resume=folder, **settings)
    assert parts.folder == folder
    assert parts.results["accuracy"] == whole.results["accuracy"]
    one, other = ([Rows(scale * x, y) for x, y in clients()] for scale in (1, 2))
    engram.simulate(one, out=tmp_path / "drawn", **settings | {"num_rounds": 1})
    with pytest.raises(Refused, match="cannot go on with other settings: dataset was 'memory:"):
        engram.simulate(other, resume=tmp_path / "drawn", **settings)


def test_a_run_goes_on_as_it_was_begun(tmp_path):
    settings = QUICK | {"method": "pfedme", "eta": 0.2, "clients_per_round": 3, "num_rounds": 1}
    folder = engram.simulate(
        clients(), out=tmp_path / "run", **settings, engine="sequential"
    ).folder
    run = engram.simulate(clients(), resume=folder, num_rounds=2, progress=False)
    begun = run.experiment
    assert (begun.method, begun.own.eta, begun.clients_per_round) == ("pfedme", 0.2, 3)
    assert (json.loads((folder / "config.json").read_text())["engine"]) == "sequential"
    assert run.metrics.index.tolist() == [0, 1, 2]
    for given, message in [
        ({"method": "fedavg"}, "run is a run of pfedme, got fedavg$"),
        ({"eta": 0.3}, "cannot go on with other settings: pfedme.eta was 0.2, not 0.3$"),
        ({"data": clients(5)}, "cannot go on with other settings: dataset was 'memory:.*, not 'm"),
        ({"out": tmp_path / "other"}, "out and resume exclude each other"),
    ]:
        with pytest.raises(Refused, match=message):
            engram.simulate(**{"data": clients(), "resume": folder, "progress": False} | given)


def test_impossible_arguments_are_refused_in_one_line(tmp_path):
    digits, no_digits = {"dataset": "digits"}, "dataset must be left out where data are given, g"
    table = r"ditto must be a table of its settings \(\[ditto\] in a file, ditto={.*} .*, got 0.3"
    twice = "ditto.eta must be given in methods or beside them, got both"
    counts = "seeds must be .*, got 0; trials must be a valid integer, .*got 0.5"
    for function, given, message in [
        (engram.simulate, digits, no_digits),
        (engram.compare, digits, no_digits),
        (engram.compare, {"methods": ["fedavg", "foo"]}, "method must be one of .*, got 'foo'"),
        (engram.compare, {"methods": [None]}, "method must be one of .*, got None"),
        (engram.compare, {"methods": 5}, "method must be one of .*, got 5"),
        (engram.compare, {"methods": {"ditto": 0.3}}, table),
        (engram.compare, {"methods": {"foo": {}}}, "method must be one of .*, got 'foo'"),
        (engram.compare, {"methods": {"ditto": {"etta": 1}}}, "etta is not a setting .*mean eta"),
        (engram.compare, {"methods": {"ditto": {"eta": 0.3}}, "ditto": {"eta": 0.5}}, twice),
        (engram.compare, {"ditto": {"eta": 0.3}}, "ditto.eta is for a method that does not take p"),
        (
            engram.compare,
            {"methods": {"ditto": {"seed": 1}}},
            "ditto.seed is not a .*use seed, for",
        ),
        (engram.compare, {"method": "ditto"}, "method is not a setting .*: use methods"),
        (engram.compare, {"tuned": 0}, "tuned must be greater than or equal to 1, got 0"),
        (engram.compare, {"tuned": (4, 0)}, "tuned must be greater than or equal to 1, got 0"),
        (
            engram.compare,
            {"tuned": "16"},
            r"tuned must be True, trials or \(trials, seeds\), got '1",
        ),
        (engram.compare, {"seeds": 0}, "seeds must be greater than or equal to 1, got 0"),
        (engram.compare, {"methods": ["fedavg", "pfedme"], "lambda_": -1}, "pfedme.lambda must be"),
        (engram.tune, digits, no_digits),
        (engram.tune, {"methods": "foo"}, "method must be one of .*, got 'foo'"),
        (engram.tune, {"methods": []}, r"methods must be some that train networks .*, got \[\]"),
        (engram.tune, {"seeds": 0, "trials": 0.5}, counts),
    ]:
        with entry(function, given):
            methods = {} if function is engram.simulate else {"methods": ["fedavg"]}
            with pytest.raises(Refused, match=f"^{message}[^\n]*$"):
                function(clients(), out=tmp_path / "out", **methods | QUICK | given)
            assert not (tmp_path / "out").exists()


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(Refused, match="etta is not a setting"):
        engram.simulate(clients(), etta=1, out=tmp_path / "run", **QUICK)
    few = {"protocol": "few-shot", "adapt_shots": 99, "out": tmp_path / "run"}
    both = "clients-per-round must be at most .*; no client has enough rows to be scored: .* = 99"
    with pytest.raises(Refused, match=both):
        engram.simulate(clients(), clients_per_round=9, **few, **QUICK)
    with pytest.raises(DataError, match=r"no client has enough rows to be scored: .* = 99"):
        engram.simulate(clients(), **few, **QUICK)
    with pytest.raises(Refused, match="no run 'nowhere'"):
        engram.load_run("nowhere")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("plug_ins")
def test_models_of_a_module_are_its_own_parameters(tmp_path):
    def net():
        layers = (torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        return torch.nn.Sequential(torch.nn.Flatten(), *layers)

    run = engram.simulate(clients(), method="pfedme", model=net, out=tmp_path / "run", **QUICK)
    for found in (run.model, run.personal_model(1)):
        module = net()
        module.load_state_dict(found)  # all names, and no others
    x = torch.from_numpy(clients()[1][0])
    assert module(x).shape == (40, 2)


@pytest.mark.usefixtures("plug_ins")
def test_a_run_of_an_unknown_network_can_be_looked_at(tmp_path, monkeypatch):
    own = {"method": "fedavg", "model": lambda: torch.nn.Linear(5, 2)}
    run = engram.simulate(clients(), **own, out=tmp_path / "run", **QUICK)
    monkeypatch.delitem(NETWORKS, "<lambda>")
    again = engram.load_run(run.folder)
    assert again.metrics["accuracy"].notna().any()
    with pytest.raises(Refused, match=r"model must be one of .*, got '<lambda>'"):
        _ = again.model


def test_notebooks_show_runs_comparisons_and_figures_by_themselves(tmp_path):
    shows = DisplayFormatter().format
    quick = {"num_clients": 4, "num_rounds": 1, "hidden": "4", "progress": False}
    found = engram.compare(methods="fedavg", seeds=1, out=tmp_path / "<all>", **quick)
    run = found.runs["fedavg"][0]
    html = shows(found)[0]["text/html"]
    assert html.startswith(f"<p>{escape(found.summary().attrs['answer'])}</p><table")
    assert "<th>fedavg</th>" in html
    html = shows(run)[0]["text/html"]
    assert html.startswith(f"<p>{escape(repr(run))}</p><table")
    assert "&lt;all&gt;" in html
    for figure in (found.plot(), run.plot()):
        assert shows(figure)[0]["image/png"].startswith(b"\x89PNG")
