"""Reports of runs: rows for each model that was scored, winners, and gains."""

import json

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from scipy.stats import t

import engram
from engram.bandits.federation.bandit_turns import drawn_environment
from engram.bandits.federation.report import references
from engram.bandits.linucb import linucb
from engram.bandits.play import play_policy
from engram.bandits.policy import batched
from engram.compare.claims import claims_of
from engram.compare.comparison_folder import find_runs
from engram.compare.report_rows import (
    client_scores,
    figures_of_clients,
    models_of,
    others,
    report_rows,
)
from engram.compare.reports.gain_plot import draw_gains
from engram.compare.reports.local import client_lines
from engram.compare.reports.sites import draw_curve
from engram.compare.text_tables import method_table, share_in_words
from engram.data.schema.columns import Schema
from engram.runs.run import Run
from engram.scoring.metrics import METRICS
from engram.settings.experiment import Experiment
from engram.tables.federation.coefficients import linear
from engram.tables.federation.strategy import Exchange

ACCURACY = METRICS["accuracy"]
CLIENTS = 6


class Record(Run):
    """A finished run, whose clients' scores are given, by the suffix of their columns."""

    metrics = (ACCURACY,)
    clients = members = CLIENTS
    config, results, picks = None, None, True

    def __init__(self, seed, validation, unseen=(), **models):
        settings = {"seed": seed, "num-clients": CLIENTS, "unseen-clients": len(unseen)}
        self.config = {"settings": settings}
        seen = [c for c in range(CLIENTS) if c not in unseen]
        columns = {}
        for which, scores in models.items():
            suffix = "" if which == "served" else f"-{which}"
            columns[f"accuracy{suffix}"] = scores
            less = 0.1 if which == "served" else 0.0
            columns[f"validation-accuracy{suffix}"] = [validation - less] * CLIENTS
        means = {
            key: float(np.nanmean([np.array(each[c], float) for c in seen]))
            for key, each in columns.items()
        }
        clients = {"ids": list(range(CLIENTS)), **columns}
        self.summary = {**means, "scored": CLIENTS}
        picked = {"round": 8, **means, "clients": clients}
        self.results = {**self.summary, "rounds": 10, "clients": clients, "selected": picked}
        self.results |= {"selected-tuned": {**picked}} if "tuned" in models else {}
        self.results |= {"unseen": list(unseen)} if unseen else {}

    def rows(self):
        trained = {"ms": 1.0, "cohort": [0, 2, 3], "absent": {"3": "late"}, "left-out": 1}
        return [{"round": 10, **trained, **self.summary}]


def record(method, seed, value, validation):
    """A run whose models are right about half, and by value after fine-tuning, or as they serve."""
    half, better = [0.5] * CLIENTS, [value + 0.01 * c for c in range(CLIENTS)]
    common = {} if method in ("fedper", "local") else {"common": half}
    if method == "fedavg":
        return Record(seed, validation, served=half, tuned=better, **common)
    return Record(seed, validation + 0.1, served=better, **common)


def runs(**given):
    """Two seeds of each method, of which FedAvg alone has fine-tuned models."""
    return {
        name: [record(name, seed, value, validation) for seed in (0, 1)]
        for name, (value, validation) in given.items()
    }


def test_methods_whose_models_were_fine_tuned_have_a_row_for_that():
    both = runs(fedavg=(0.7, 0.8), ditto=(0.6, 0.7))
    tuned = ("fedavg", "fedavg + fine-tuning", "-tuned")
    assert models_of(both) == [("fedavg", "fedavg", ""), tuned, ("ditto", "ditto", "")]
    found = report_rows(both)
    assert [row["method"] for row in found] == ["fedavg", "fedavg + fine-tuning", "ditto"]
    assert [row["accuracy"] for row in found] == pytest.approx([0.5, 0.725, 0.625])
    assert [row["accuracy-common"] for row in found] == [0.5] * 3
    assert [row["validation-accuracy"] for row in found] == pytest.approx([0.7, 0.8, 0.7])
    assert not any("tuned" in key for row in found for key in row)
    assert [row["trained"] for row in found] == [2] * 3  # of the three that were asked


def test_scores_are_those_of_the_round_that_is_picked_for_a_model():
    one = record("fedavg", 0, 0.7, 0.8)
    one.results["clients"] = {}  # of the last round, which none picks
    for which, mean in [("", 0.5), ("-tuned", 0.725), ("-common", 0.5)]:
        (found,) = client_scores([one], "accuracy", which)
        assert found.mean() == pytest.approx(mean)
        key = "selected-tuned" if which == "-tuned" else "selected"
        assert one.picked(which) is one.results[key]


def test_a_metric_whose_name_is_the_beginning_of_anothers_keeps_its_figures():
    one = record("fedavg", 0, 0.7, 0.8)
    longer = ACCURACY._replace(name="accuracy-of-two")
    one.metrics = (longer, ACCURACY)
    selected = one.results["selected"], one.results["selected-tuned"]
    for found in (one.results, *selected, one.summary):
        found |= {f"accuracy-of-two{which}": 0.9 for which in ("", "-common", "-tuned")}
        found |= {f"validation-accuracy-of-two{which}": 0.9 for which in ("", "-tuned")}
    served, tuned = report_rows({"fedavg": [one]})
    assert served["accuracy-of-two"] == tuned["accuracy-of-two"] == 0.9
    assert (served["accuracy"], tuned["accuracy"]) == (0.5, pytest.approx(0.725))


def test_the_best_is_chosen_on_validation_rows_and_compared_on_test_rows():
    both = runs(fedavg=(0.7, 0.8), ditto=(0.9, 0.7))
    found = claims_of(both, report_rows(both), ACCURACY)
    assert found.best == "fedavg + fine-tuning"
    assert found.pairs[found.best, "ditto"].mean == pytest.approx(-0.2)
    assert found.pairs[found.best, "fedavg"].mean == pytest.approx(0.225)
    assert (found.seeds, found.clients) == (2, CLIENTS)


def test_nothing_is_compared_before_all_runs_are_finished_with_the_same_seeds():
    both = runs(fedavg=(0.7, 0.8), ditto=(0.9, 0.7))
    rows = report_rows(both)
    both["ditto"].pop()
    assert claims_of(both, rows, ACCURACY) is None
    for row in rows:
        row["validation-accuracy"] = None
    assert claims_of(runs(fedavg=(0.7, 0.8), ditto=(0.9, 0.7)), rows, ACCURACY) is None


def test_clients_that_never_train_are_not_compared():
    one = Record(0, 0.8, served=[0.9] * CLIENTS, unseen=[1, 4])
    (found,) = client_scores([one], "accuracy")
    assert np.flatnonzero(np.isnan(found)).tolist() == [1, 4]


def test_rows_count_clients_and_those_that_are_served_worse_than_by_themselves():
    """By itself a client reaches 0.60 to 0.65, with Ditto 0.63 to 0.68, with FedAvg 0.5."""
    found = runs(local=(0.6, 0.6), fedavg=(0.7, 0.8), ditto=(0.63, 0.7))
    rows = {row["method"]: row for row in report_rows(found)}
    assert [row["accuracy-clients"] for row in rows.values()] == [CLIENTS] * 4
    assert "accuracy-worse-than-local" not in rows["local"]
    assert rows["fedavg"]["accuracy-worse-than-local"] == 1.0
    assert rows["fedavg + fine-tuning"]["accuracy-worse-than-local"] == 0.0
    assert rows["ditto"]["accuracy-worse-than-local-high"] is None
    assert share_in_words(rows["ditto"], "accuracy") == "0"
    legend = method_table([*rows.values()], ACCURACY, {}).legend
    assert legend["worse"].endswith("; the interval needs 3 seeds")
    assert not any("worse" in key for row in report_rows(runs(ditto=(0.9, 0.7))) for key in row)


def test_with_three_seeds_the_share_that_is_served_worse_has_an_interval():
    """Of no client of six: Wilson's upper limit q^2 / (q^2 + n), with variance of pseudo-seeds."""
    given = {"local": 0.6, "ditto": 0.63}
    found = {
        name: [record(name, seed, mean, 0.5) for seed in range(3)] for name, mean in given.items()
    }
    rows = report_rows(found)
    variance = (1 / 8) * (7 / 8) / 3 / 4
    count, q = min((1 / 20) * (19 / 20) / variance, 6), t.ppf(0.975, 4)
    high = q**2 / (q**2 + count)
    assert rows[1]["accuracy-worse-than-local-high"] == pytest.approx(high)
    assert share_in_words(rows[1], "accuracy") == f"0 (0-{100 * high:.0f})"
    assert "95 % interval" in method_table(rows, ACCURACY, {}).legend["worse"]


def test_a_mean_of_too_few_clients_is_absent():
    """An AUC needs both classes."""
    few = [0.9, None, None, None, None, 0.8]
    found = {"ditto": [Record(seed, 0.8, served=few) for seed in (0, 1)]}
    (row,) = report_rows(found)
    assert (row["accuracy"], row["accuracy-std"], row["accuracy-clients"]) == (None, None, 2)
    told = [*client_lines(found, [row])]
    assert "ditto: 2 of 6 clients have the score accuracy, too few for a mean" in told


def test_clients_that_left_are_neither_missed_in_a_mean_nor_counted_as_not_trained():
    one = Record(0, 0.8, served=[0.9, None, None, None, None, 0.8])
    one.members, rows = 2, one.rows()
    one.rows = lambda: [row | {"members": [0, 5]} for row in rows]
    for found in (one.results, one.results["selected"]):
        found["scored"] = 2
    (row,) = report_rows({"ditto": [one]})
    assert row["accuracy"] == pytest.approx(0.85)
    assert (row["accuracy-clients"], row["members"], row["trained"]) == (2, 2, 1)
    (told,) = client_lines({"ditto": [one]}, [row])
    assert told.startswith("1 of 2 clients were never sampled")  # client 2 was, and has left


def test_a_mean_is_over_the_clients_that_a_run_goes_on_with(tmp_path):
    settings = {"num_clients": 3, "clients_per_round": 2, "without": "2", "num_rounds": 2}
    run = engram.simulate(method="fedavg", out=tmp_path / "run", progress=False, **settings)
    row, _ = report_rows(find_runs(run.folder))
    scores = run.picked.clients["accuracy"]
    assert [*scores.index] == [0, 1]
    assert row["accuracy"] == pytest.approx(scores.mean())
    assert (row["members"], row["trained"]) == (2, 2)
    assert not [*client_lines(find_runs(run.folder), [row])]


def test_a_mean_of_losses_says_of_how_many_sites_it_is():
    losses = {"loss-own": 3.0, "loss-shared": 2.0, "loss-personal": 1.0}
    row = {"sites": 3, "left-out": {}, "scored": 2, **losses}
    said = "3 sites, held-out loss of 2 sites 1 (alone 3, shared 2)"
    assert Exchange.in_words(row) == said
    assert Exchange.in_words(row | {"scored": 3}) == said.replace(" of 2 sites", "")


def test_limits_that_are_not_known_are_empty_cells():
    limits = {"low": torch.tensor([-torch.inf, 1.0]), "high": torch.tensor([torch.nan, 3.0])}
    found = linear(Schema(()), ["a", "b"], torch.tensor([1.5, 2.0]), limits)
    assert found.table == "name,coef,low,high\na,1.5,,\nb,2.0,1.0,3.0\n"


def test_gains_are_drawn_over_each_reference():
    figure = draw_gains(runs(local=(0.6, 0.6), fedavg=(0.7, 0.8), ditto=(0.9, 0.7)), ACCURACY)
    assert [axes.get_title() for axes in figure.axes] == ["over local", "over fedavg"]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["fedavg + fine-tuning", "ditto"]
    _, ditto = (c for c in figure.axes[0].collections if isinstance(c, PathCollection))
    assert ditto.get_offsets()[:, 0].tolist() == pytest.approx([30.0] * 2 * CLIENTS)
    assert draw_gains(runs(ditto=(0.9, 0.7)), ACCURACY) is None


def turns(**settings):
    return Experiment(
        method="meta-ban", num_clients=6, num_rounds=40, hidden="4", timeout=5.0, **settings
    )


def test_simple_policies_play_the_turns_of_a_run():
    e = turns(dataset="linear-groups", seed=3)
    linear, random = references(e).items()
    environment = drawn_environment(e)
    policy = batched([linucb(environment.dim, alpha=0.1, lam=1.0)])
    np.testing.assert_array_equal(linear[1], play_policy(policy, [environment], [3]).regrets[0])
    assert [name.split(":")[0] for name, _ in (linear, random)] == ["LinUCB, one each", "random"]
    assert random[0].endswith(f": {random[1][-1]:.0f} in the end")


def test_no_simple_policy_plays_tables_or_too_many_turns():
    table = {"dataset": "csv:offers.csv", "target_column": "bought", "task_column": "user"}
    assert references(turns(**table)) == {}
    long = turns(dataset="linear-groups").model_copy(update={"num_rounds": 10**6})
    assert references(long) == {}


def test_a_run_of_sites_draws_what_its_report_draws(tmp_path):
    settings = {"dataset": "sparse-linear", "num_clients": 3, "num_rounds": 4, "progress": False}
    run = engram.simulate(method="molar-bandit", out=tmp_path / "run", **settings)
    (line,) = run.plot().axes[0].lines
    assert [*line.get_ydata()] == [0, *run.metrics["regret"]]


def test_rows_of_a_damaged_record_that_lack_regret_are_not_drawn(tmp_path):
    for method, own, drawn in [
        ("molar-bandit", {"dataset": "sparse-linear", "num_clients": 3}, 0),
        ("meta-ban", {"dataset": "linear-groups", "num_clients": 6, "hidden": "4"}, 1),
    ]:
        folder = tmp_path / method
        engram.simulate(method=method, out=folder, progress=False, num_rounds=4, **own)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        del rows[1]["regret"]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (line, *_) = engram.load_run(folder).plot().axes[0].lines
        assert len(line.get_ydata()) == len(rows) + drawn  # one less, and the start


def test_references_are_drawn_beside_a_runs_regret():
    others = {"linear": np.array([1.0, 1.5]), "random": np.array([1.0, 2.0])}
    (axes,) = draw_curve([1, 2], [1.0, 1.7], "-", {}, others).axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    expected = {"this run": [0, 1.0, 1.7], "linear": [0, 1.0, 1.5], "random": [0, 1.0, 2.0]}
    assert {name: [*values] for name, values in lines.items()} == expected
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(lines)


def test_a_method_whose_clients_share_a_part_has_no_common_model():
    rows = {row["method"]: row for row in report_rows(runs(fedper=(0.7, 0.8), ditto=(0.6, 0.7)))}
    assert "accuracy-common" not in rows["fedper"]
    assert rows["fedper"]["accuracy"] == pytest.approx(0.725)
    assert rows["ditto"]["accuracy-common"] == pytest.approx(0.5)


def test_the_untrained_model_is_of_the_first_method_with_a_common_one():
    both = runs(local=(0.6, 0.6), fedavg=(0.7, 0.8))
    ends = {"": 0.1, "-std": 0.02, "-variance": 4e-4, "-jain": 0.9, "-p10": 0.05, "-worst": 0.0}
    for one in both["fedavg"]:
        one.summary |= {f"accuracy-common{end}": value for end, value in ends.items()}
    known = {f"accuracy{end}": value for end, value in (ends | {"-seed-std": 0.0}).items()}
    assert others(both, ACCURACY, {}) == {"untrained model": pytest.approx(known)}
    assert others(runs(local=(0.6, 0.6)), ACCURACY, {}) == {}


def test_what_is_picked_is_a_mean_as_the_answer_is_and_a_best_method_is_picked_by_medians():
    """The table, its references and the answer say one number, also of errors without two ends."""
    one = record("fedavg", 0, 0.7, 0.8)
    one.metrics = (METRICS["rmse"],)
    errors, held = [1.0, 1.0, 1.0, 1.0, 2.0, 9.0], [2.0, 2.0, 2.0, 2.0, 2.0, 8.0]
    columns = {"ids": list(range(CLIENTS)), "rmse": errors, "validation-rmse": held}
    means = {"rmse": 2.5, "rmse-median": 1.0, "validation-rmse": 3, "validation-rmse-median": 2.0}
    one.summary = {"scored": CLIENTS, **means}
    picked_round = {"round": 8, **means, "clients": columns}
    one.results = {**one.summary, "rounds": 10, "clients": columns, "selected": picked_round}
    (row,) = report_rows({"fedavg": [one]})
    assert (row["rmse"], row["validation-rmse-median"]) == (2.5, 2.0)
    constant = figures_of_clients(np.array(errors), METRICS["rmse"])
    assert constant[0] == np.mean(errors) == row["rmse"]
