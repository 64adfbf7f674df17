"""``engram report``: a page that needs nothing else, with what the runs have recorded."""

import html
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import engram as front
from engram.api import simulate
from engram.compare.claims import scores_of
from engram.compare.comparison_api import compare
from engram.compare.comparison_folder import find_runs
from engram.compare.differences import pairwise
from engram.compare.report_rows import client_scores
from engram.compare.reports.gain_plot import gain_lines
from engram.compare.results import references_of
from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.studio.pages.figures import clients, curves, gains
from engram.studio.pages.page import page
from engram.studio.pages.reproduce_command import repeating
from tests.studio.conftest import DATA, QUICK, rows
from tests.support import small, write_plug_in


@pytest.fixture
def compared(folder):
    """A comparison of two seeds; one client's name would be a tag, were it not escaped."""
    return folder / "both"


class Reader(HTMLParser):
    """Collects a page's tables, its other texts, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.rows, self.texts, self._tag = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._tag = tag
        if tag == "tr":
            self.rows.append([])
        self.loaded += [v for k, v in attrs if k in ("src", "href") and not v.startswith("data:")]

    def handle_endtag(self, tag):
        self._tag = ""

    def handle_data(self, data):
        if self._tag in ("td", "th"):
            self.rows[-1].append(data)
        elif self._tag in ("h2", "p", "pre"):
            self.texts.append(data)


def test_the_page_of_a_comparison_has_its_table_figures_and_settings(compared):
    text = page(compared)
    found = Reader(text)
    assert found.loaded == []
    assert "<b>hill" not in text
    heading, *table = found.rows[:10]
    ends = ("worse", "mean ± sd", "p10", "worst", "global", "seeds", "KiB", "ms", "client ms")
    assert heading == ["method", *ends]
    trained = [row[0] for row in table if row[0].split()[0] in ("fedavg", "local", "ditto")]
    methods = ("fedavg", "local", "ditto")
    assert trained == [f"{name}{end}" for name in methods for end in ("", " + fine-tuning")]
    results = [Run.open(compared / f"ditto-seed{seed}").results for seed in (0, 1)]
    (picked,) = [row[2] for row in table if row[0] == "ditto"]
    mean = 50 * sum(run["selected"]["accuracy"] for run in results)
    assert picked.partition(" ")[0] == f"{mean:.1f}"
    titles = {"Accuracy against rounds", "What each client gains over local, in accuracy"}
    assert titles <= set(found.texts)
    (said,) = [text for text in found.texts if "engram.compare" in text]
    needs, call = said.split("\n")
    assert needs == "# needs what runs do not record, as it was given: data"
    start = "engram.compare(data, methods=['fedavg', 'local', 'ditto'], seeds=2, **{"
    assert call.startswith(start)
    assert "dataset" not in call
    settings = {row[0]: row[1:] for row in found.rows if len(row) in (2, 3)}
    assert settings["num-rounds"] == ["4", "100"]
    assert settings["seed"] == ["0, 1", "0"]
    assert settings["ditto.lambda"] == ["1.0"]


def test_figures_show_the_recorded_numbers(compared):
    runs = find_runs(compared)
    accuracy = runs["ditto"][0].metrics[0]
    lines = {trace.name: trace for trace in curves(runs, accuracy).data if trace.name}
    curve = [
        [100 * row["accuracy"] for row in record.rows() if "accuracy" in row]
        for record in runs["ditto"]
    ]
    assert list(lines["ditto"].x) == [2, 4]
    np.testing.assert_allclose(lines["ditto"].y, np.mean(curve, axis=0)[1:])
    scores = client_scores(runs["ditto"], "accuracy")
    base = client_scores(runs["local"], "accuracy")
    dots = {trace.name: trace for trace in gains(runs, accuracy)["local"].data if trace.name}
    expected = 100 * np.concatenate([a - b for a, b in zip(scores, base, strict=True)])
    np.testing.assert_allclose(dots["ditto"].x, expected)
    beside = references_of(compared, runs)["accuracy"]
    marks = [t for t in gains(runs, accuracy, beside)["local"].data if t.error_x.array is not None]
    lines = [label for _, label, _ in gain_lines(runs)[1]]
    pairs = pairwise(scores_of(runs, accuracy, beside))
    for label, mark in zip(lines, marks, strict=True):
        d = pairs[label, "local"]
        assert mark.x[0] == pytest.approx(100 * d.mean)
        assert mark.error_x.array[0] == pytest.approx(100 * (d.high - d.mean))
        assert f"({100 * d.low:.4g} to {100 * d.high:.4g})" in mark.hovertemplate
    assert dots["ditto"].text[:2] == ("park, seed 0", "<b>hill</b>, seed 0")
    each = {trace.name: trace for trace in clients(runs, accuracy).data if trace.name}
    np.testing.assert_allclose(each["ditto"].x, 100 * np.concatenate(scores))


def test_the_command_on_a_page_repeats_the_run(tmp_path):
    run = simulate(
        method="fedavg", out=tmp_path / "run", progress=False, eta=0.2, partition="iid", **QUICK
    )
    (command,) = re.findall(r"<pre>(.*)</pre>", page(run.folder))
    words = command.split()
    assert words[:3] == ["engram", "run", "fedavg"]
    given = dict(word.split("=") for word in words if "=" in word)
    again = Experiment.from_config({"method": "fedavg", **given})
    assert again.to_config() == run.experiment.to_config()


def test_runs_of_other_families_have_their_pictures(engram, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert engram("run", "molar", "--set", "dataset=sparse-linear", "--out", "m")[0] == 0
    status, out, _ = engram("report", "m", "--html", "m.html")
    assert (status, out) == (0, "page: m.html\n")
    text = Path("m.html").read_text()
    assert text.count("data:image/png;base64,") == len(list(Path("m").glob("*.png"))) > 0
    assert Reader(text).loaded == []


def test_no_button_sends_the_figures_away(compared):
    text = page(compared)
    assert text.count('displaylogo": false') == text.count('showSendToCloud": false') > 0


def test_what_cannot_be_reported_is_refused(engram, tmp_path, compared):
    record = RunWriter.create(tmp_path / "new", small(), engine="vectorized", training="a")
    with pytest.raises(Refused, match="nothing to report yet"):
        page(record.folder)
    status, _, said = engram("report", compared, "--html", tmp_path / "none" / "x.html")
    assert status == 2
    assert said.startswith("engram: --html must be the name of an .html file in a folder, got ")
    assert json.loads((compared / "comparison.json").read_text())["engine"]


def test_settings_that_methods_have_otherwise_are_given_for_each(tmp_path):
    plan = {
        f"{method}-seed{seed}": {"method": method, "seed": seed, "adapt-lr": lr, "num-rounds": 4}
        for method, lr in (("fedavg", 0.1), ("ditto", 0.02))
        for seed in (3, 4)
    }
    text = json.dumps({"engine": "vectorized", "runs": plan})
    (tmp_path / "comparison.json").write_text(text)
    assert repeating(tmp_path, {"settings": {}}) == (
        "engram compare fedavg ditto --seeds 2 --set seed=3 --set fedavg.adapt-lr=0.1 "
        "--set num-rounds=4 --set ditto.adapt-lr=0.02"
    )


def test_what_repeats_a_run_on_data_in_memory_does(compared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (compared, compared / "ditto-seed1"):
        first = Run.open(next(iter(find_runs(folder).values()))[0].folder)
        call = repeating(folder, first.config)
        again = eval(call, {"engram": front, "data": DATA})
        found = {name: [r.results for r in each] for name, each in find_runs(again.folder).items()}
        for name, records in find_runs(folder).items():
            expected = [record.results["clients"] for record in records]
            assert [result["clients"] for result in found[name]] == expected


def test_metrics_have_a_tab_each_with_gains_and_table_of_their_own(tmp_path):
    data = {name: rows(seed) for seed, name in enumerate(("park", "hill"))}
    found = compare(data, methods=["fedper"], seeds=1, out=tmp_path / "two", progress=False,
                    metrics="accuracy,f1", **QUICK)  # fmt: skip
    text = page(found.folder)
    assert re.findall(r'<label for="metric-\d">(.*)</label>', text) == ["accuracy", "f1"]
    parts = re.findall(r'<section id="part-\d">(.*?)</section>', text, re.DOTALL)
    for name, part in zip(("accuracy", "f1"), parts, strict=True):
        titles = re.findall("<h2>(.*)</h2>", part)
        assert titles[0].startswith("What each client gains over ")
        assert all(name in title.lower() for title in titles)
        (row,) = [row for row in Reader(part).rows if row[:1] == ["fedper"]]
        (run,) = found.runs["fedper"]
        means = [run.results["selected"][key] for key in (name, f"{name}-std")]
        shown = [f"{100 * mean:.1f}" if name == "accuracy" else f"{mean:.4g}" for mean in means]
        assert row[2] == " ± ".join(shown)


def repeated(text):
    return html.unescape(re.findall(r"<pre>(.*)</pre>", text, re.DOTALL)[0])


def scores_in(folder):
    found = find_runs(folder)
    return {name: [run.results["clients"] for run in records] for name, records in found.items()}


@pytest.mark.usefixtures("plug_ins")
def test_what_repeats_a_run_with_a_plug_in_does(engram, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_plug_in(Path("outside.py"), "somebodys-own")
    more = [f"-s{key.replace('_', '-')}={value}" for key, value in QUICK.items()]
    called = ("--plugin", "outside", "run", "somebodys-own", *more, "--out", "run")
    status, out, _ = engram(*called)
    assert status == 0
    line = out.splitlines()[-1].removeprefix("next: engram ")
    assert engram(*shlex.split(line), "--out", "exported")[0] == 0
    command = repeated(page(Path("run")))
    assert engram(*shlex.split(command)[1:], "--out", "again")[0] == 0
    assert scores_in(Path("again")) == scores_in(Path("run"))


def test_what_repeats_a_run_with_a_network_and_functions_of_python_does(tmp_path, engram):
    class Net(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(3, 2))

    def my_loss(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    def my_share(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean()

    quick = {key: value for key, value in QUICK.items() if key != "hidden"}
    own = {"model": Net, "loss": my_loss, "metrics": ["accuracy", my_share]}
    data = [rows(0), rows(1)]
    run = simulate(data, method="ditto", out=tmp_path / "run", progress=False, **own, **quick)
    call = repeated(page(run.folder))
    assert call.startswith(
        "# needs what runs do not record, as it was given: data, Net, my_loss, my_share\n"
        "engram.simulate(data, method='ditto', "
    )
    known = {"engram": front, "data": data, "Net": Net, "my_loss": my_loss, "my_share": my_share}
    again = eval(call, known)
    assert scores_in(again.folder) == scores_in(run.folder)
    assert engram("show", run.folder)[1].splitlines()[-1] == f"next: engram report {run.folder}"
