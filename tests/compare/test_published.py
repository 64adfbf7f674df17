"""Tables and figures of a comparison for a paper: what they say, and what is refused."""

import json
import re
import shutil
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import engram
from engram.compare.comparison_api import compare, load_comparison
from engram.compare.paper_tables import WIDTHS
from engram.compare.reports import figure_files
from engram.compare.reports.figure_files import draw_files, figures_of, sheet_of
from engram.compare.results import metrics_of
from engram.settings.errors import Refused
from tests.samples import entry

QUICK = {"num_rounds": 2, "eval_every": 1, "clients_per_round": 2, "local_steps": 1, "hidden": "4"}
NAMES = ["park", "hill & lake", "down_town", "100 %"]


def rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    return x, (x[:, seed % 3] > 0).astype(int)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A comparison of three methods by two metrics, two seeds and four clients, one unseen."""
    data = {name: rows(seed) for seed, name in enumerate(NAMES)}
    out = tmp_path_factory.mktemp("compared") / "both"
    more = {"metrics": "accuracy,f1", "unseen_clients": 1, "progress": False}
    return compare(data, methods=["ditto"], seeds=2, out=out, **more, **QUICK)


def results(found, method):
    return [run.results for run in found.runs[method]]


def test_all_tables_are_of_one_round(found):
    for chosen in ("picked", "last"):
        check_tables(found, chosen)


def check_tables(found, chosen):
    again = load_comparison(found.folder, round=chosen)
    frame = again.summary()
    untrained = [run.metrics["f1-common"].iloc[0] for run in found.runs["ditto"]]
    assert frame.loc["untrained model", "f1-seed-std"] == pytest.approx(np.std(untrained, ddof=1))
    for name in ("accuracy", "f1"):
        assert frame[f"{name}-seed-std"].notna().all()
        for method in ("ditto", "fedavg"):
            each = [r["selected"] if chosen == "picked" else r for r in results(found, method)]
            values = [one[name] for one in each]
            assert frame.loc[method, name] == pytest.approx(np.mean(values))
            spread = np.std(values, ddof=1)
            assert frame.loc[method, f"{name}-seed-std"] == pytest.approx(spread)
        clients = again.per_client(name)[lambda each: ~each["unseen"]]
        seeds = clients.groupby("seed").mean()
        pairs = again.significance(name).set_index(["one", "other"])["difference"]
        for one, other in pairs.index:
            if other != "untrained model":
                gap = (seeds[one] - seeds[other]).mean()
                assert pairs[one, other] == pytest.approx(gap)
                assert frame.loc[one, name] - frame.loc[other, name] == pytest.approx(gap)
    assert ("after 2 rounds" in again.to_latex()) == (chosen == "last")
    assert ("after 2 rounds" in " ".join(str(again).split())) == (chosen == "last")


def test_the_last_round_is_another_table(found, engram):
    last = load_comparison(found.folder, round="last")
    assert not last.summary().equals(found.summary())
    assert engram("show", found.folder, "--csv", "--round", "last")[1] == last.summary().to_csv()
    with pytest.raises(Refused, match=r"^round must be picked or last, got 'first'$"):
        load_comparison(found.folder, round="first")
    assert engram("show", found.folder, "--round", "last")[0] == 2


def test_the_best_is_bold_and_a_dagger_marks_those_it_is_not_told_apart_from(found):
    pairs = found.significance()
    _, *lines = cells(found.to_latex())
    validation = found.table["validation-accuracy"]
    best = validation.idxmax()
    marks = {label: (r"\textbf" in cell, "dagger" in cell) for label, cell, _ in reversed(lines)}
    for label, (bold, dagger) in marks.items():
        pair = pairs[pairs["one"].isin([best, label]) & pairs["other"].isin([best, label])]
        assert bold == (label == best)
        assert dagger == (label != best and not pair["shown"].any())
    assert any(dagger for _, dagger in marks.values())


def test_clients_stand_beside_each_other_by_their_names(found):
    frame = found.per_client("f1")
    assert list(frame.index.get_level_values("client")) == NAMES * 2
    assert list(frame.index.get_level_values("seed")) == [0] * 4 + [1] * 4
    for seed, result in enumerate(results(found, "ditto")):
        mine = frame.loc[seed]
        assert list(np.flatnonzero(mine["unseen"])) == result["unseen"]
        clients = result["selected"]["clients"]
        named = [NAMES[client] for client in clients["ids"]]
        expected = dict(zip(named, clients["f1"], strict=True))
        assert mine["ditto"].to_dict() == pytest.approx(expected)


def test_significance_is_of_the_same_clients_of_the_same_seeds(found):
    frame = found.significance().set_index(["one", "other"])
    scores = found.per_client()[lambda each: ~each["unseen"]]
    columns = [column for column in scores if column != "unseen"]
    assert len(frame) == len(columns) * (len(columns) - 1) / 2
    gaps = (scores["ditto"] - scores["own constant"]).unstack("client").to_numpy()
    pair = frame.loc[("ditto", "own constant")]
    assert pair["difference"] == pytest.approx(np.nanmean(gaps, axis=1).mean())
    assert pair["low"] < pair["difference"] < pair["high"]
    assert (pair["clients"], pair["seeds"]) == (np.isfinite(gaps).any(axis=0).sum(), 2)
    assert list(frame["shown"]) == list((frame["low"] > 0) | (frame["high"] < 0))
    assert list(frame["shown"]) == list(frame["p"] < 0.05)


def test_a_reference_that_is_left_out_is_a_row_of_dashes_that_says_why(found, tmp_path, engram):
    folder = shutil.copytree(found.folder, tmp_path / "without")
    held = json.loads((folder / "references.json").read_text())
    for seed in ("0", "1"):
        del held[seed]["own linear model"]
    held["notes"] = {"own linear model": "none for photos"}
    (folder / "references.json").write_text(json.dumps(held))
    less = load_comparison(folder)
    frame = less.summary()
    own = frame.loc["own linear model"]
    assert own["note"] == "none for photos"
    assert own.drop("note").isna().all()
    assert list(frame.index) == list(found.summary().index)
    assert "own linear model & - & - " in less.to_latex()
    assert "Own linear model: none for photos." in less.to_latex()
    _, out, _ = engram("show", folder)
    row, note, *_ = [line.strip() for line in out.splitlines() if "own linear model" in line]
    assert set(row.removeprefix("own linear model")) == {" ", "-"}
    assert note == "own linear model: none for photos"


def test_csv_is_the_summary(found, tmp_path, engram):
    path = found.to_csv(tmp_path / "table.csv")
    read = pd.read_csv(path, index_col="method")
    np.testing.assert_array_equal(read["f1"], found.summary()["f1"])
    status, out, _ = engram("show", found.folder, "--csv")
    assert (status, out) == (0, path.read_text())
    with pytest.raises(Refused, match="is there already"):
        found.to_csv(path)
    with pytest.raises(Refused, match="there is no folder"):
        found.to_csv(tmp_path / "none" / "table.csv")


def cells(table):
    body = re.findall(r"^ +([^&\n]*(?: & [^&\n]*)+) \\\\$", table, re.M)
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", line)] for line in body]


def test_latex_has_a_line_for_each_row(found, tmp_path):
    table = found.to_latex(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text() == table
    heading, *lines = cells(table)
    assert heading == ["method", r"accuracy (\%)", "f1"]
    labels = [label.removesuffix(", new clients") for label in found.summary().index]
    assert [line[0] for line in lines] == labels
    row = found.summary().loc["ditto"]
    mean, spread = (100 * row[key] for key in ("accuracy", "accuracy-seed-std"))
    ditto, _ = [line for line in lines if line[0] == "ditto"]
    shown = re.sub(r"\\textbf{(.*)}", r"\1", ditto[1]).removesuffix(r"$^\dagger$")
    assert shown == rf"{mean:.1f} $\pm$ {spread:.1f}"
    places = -Decimal(f"{row['f1-seed-std']:.1e}").as_tuple().exponent  # two digits of the spread
    mean, spread = (f"{row[key]:.{places}f}" for key in ("f1", "f1-seed-std"))
    assert re.match(rf"(\\textbf{{)?{mean} \$\\pm\$ {spread}", ditto[2])
    assert r"\begin{table*}" in found.to_latex(width="two")
    assert table.count("{") == table.count("}")
    never = set.intersection(*(set(each["unseen"]) for each in results(found, "ditto")))
    assert f"mean over {4 - len(never)} clients" in table  # those that train with any seed
    assert "new clients: clients that never train; the other rows are without them" in str(found)
    each = [r["selected"]["unseen-f1"] for r in results(found, "ditto")]
    new = found.summary().loc["ditto, new clients"]
    assert new["f1"] == pytest.approx(np.mean(each))
    assert new["f1-seed-std"] == pytest.approx(np.std(each, ddof=1))


def test_a_table_that_does_not_fit_is_refused(found, engram, monkeypatch):
    table = found.to_latex().replace(r"$\pm$", "±").replace(r"$^\dagger$", "†").replace(r"\%", "%")
    lines = cells(re.sub(r"\\textbf{(.*?)}", r"\1", table))
    letters = sum(max(map(len, column)) for column in zip(*lines, strict=True)) + 2 * 2
    monkeypatch.setitem(WIDTHS, "one", letters)
    assert found.to_latex()
    monkeypatch.setitem(WIDTHS, "one", letters - 1)
    said = f"the table does not fit: it has {letters} letters, and one column of a paper "
    instead = f"{said}{letters - 1}: take width two"
    assert engram("show", found.folder, "--latex") == (2, "", f"engram: {instead}\n")
    assert engram("show", found.folder, "--latex", "--width", "two")[0] == 0
    monkeypatch.setitem(WIDTHS, "two", 999)
    wide = found.to_latex(width="two")
    assert (r"& KiB & gradients \\" in wide, "Cost: of a client in a round.}" in wide) == (
        True,
        True,
    )
    with pytest.raises(Refused, match=r"^width must be one or two, .*, got 'three'$"):
        found.to_latex(width="three")


def draw_only(monkeypatch, *kinds):
    """Leaves all figures but some of the first metric undrawn: each takes long."""

    def some(*place, **how):
        found = figures_of(*place, **how)
        return {kind: found[kind] for kind in kinds}

    monkeypatch.setattr(figure_files, "figures_of", some)
    monkeypatch.setattr(figure_files, "metrics_of", lambda runs: metrics_of(runs)[:1])


@pytest.mark.usefixtures("drawn")
def test_figures_are_drawn_in_a_format_the_same_every_time(found, tmp_path, monkeypatch):
    both = {"gains", "gains-f1", "accuracy", "f1", "clients", "clients-f1"}
    assert figures_of(found.folder).keys() == both
    folder = shutil.copytree(found.folder, tmp_path / "copy")
    for file_format, head, kinds in [
        ("pdf", b"%PDF-", ["clients"]),
        ("svg", b"<?xml", ["gains", "accuracy", "clients"]),
        ("png", b"\x89PNG", ["clients"]),
    ]:
        draw_only(monkeypatch, *kinds)
        names = [f"{kind}.{file_format}" for kind in kinds]
        each = []
        for _ in range(2):
            assert draw_files(folder, sheet_of(file_format, "one", None)) == names
            each.append([(folder / name).read_bytes() for name in names])
        assert all(data.startswith(head) for data in each[0])
        assert each[0] == each[1]


@pytest.mark.usefixtures("drawn")
def test_a_figure_is_as_wide_as_the_columns_and_has_the_style(found, tmp_path, monkeypatch):
    draw_only(monkeypatch, "accuracy")
    folder = shutil.copytree(found.folder, tmp_path / "copy")
    (tmp_path / "own.mplstyle").write_text("axes.facecolor: 123456\n")
    for width, inches in (("one", 3.5), ("two", 7.16)):
        draw_files(folder, sheet_of("svg", width, str(tmp_path / "own.mplstyle")))
        text = (folder / "accuracy.svg").read_text()
        points = float(re.search(r'width="([\d.]+)pt"', text)[1])
        assert points == pytest.approx(72 * inches, abs=0.01)
        assert "#123456" in text


def test_a_style_leaves_matplotlib_as_it_was(found):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    sheet_of("pdf", "one", "ggplot")
    assert dict(mpl.rcParams) == before


def test_what_is_not_known_is_refused_in_one_line(found, engram):
    for words, said in [
        (["--format", "jpg"], "--format must be one of pdf, png, svg, got 'jpg'"),
        (["--width", "three"], "--width must be one or two, the columns of a paper, got 'three'"),
        (
            ["--style", "no.mplstyle"],
            "--style must be a file of matplotlib's style, or the name of one, got 'no.mplstyle'",
        ),
        (["--csv", "--json"], "--csv, --latex and --json exclude each other"),
    ]:
        with entry(said):
            assert engram("show", found.folder, *words) == (2, "", f"engram: {said}\n")


def test_a_comparison_is_loaded_again(found):
    again = engram.load_comparison(found.folder)
    assert again.summary().equals(found.summary())
    assert str(again) == str(found)
    assert again.runs.keys() == found.runs.keys()
    with pytest.raises(Refused, match="metric must be one of accuracy, f1, got 'auc'"):
        again.per_client("auc")


def test_a_comparison_that_is_half_there_is_loaded_without_what_is_missing(found, tmp_path):
    folder = shutil.copytree(found.folder, tmp_path / "half")
    (folder / "ditto-seed1" / "results.json").unlink()
    shutil.rmtree(folder / "local-seed0")
    half = load_comparison(folder)
    assert half.stopped == ["local-seed0: not finished", "ditto-seed1: not finished"]
    counts = {name: len(runs) for name, runs in half.runs.items()}
    assert counts == {"fedavg": 2, "local": 1, "ditto": 1}
    assert half.summary().loc["ditto", "seeds"] == 1


def test_a_damaged_comparison_is_refused(found, tmp_path):
    folder = shutil.copytree(found.folder, tmp_path / "damaged")
    for name in ("comparison.json", "references.json", "ditto-seed0/results.json"):
        whole = (folder / name).read_text()
        (folder / name).write_text(whole[:-20])
        with pytest.raises(Refused) as refused:
            load_comparison(folder).summary()
        assert "\n" not in str(refused.value)
        assert name.rpartition("/")[2] in str(refused.value)
        (folder / name).write_text(whole)
