"""The grid of attacks and defences: its cells, one run, and going on with what is there."""

import json

import numpy as np
from scipy import stats

from benchmarks.harness import percent
from benchmarks.losses import tables
from benchmarks.robust import ATTACKS, DEFENCES, METHODS, PARTITIONS, Cell, cells, main, run
from tests.tables import entry


def grid(methods, attacks=ATTACKS, defences=DEFENCES, seeds=1):
    some = cells(methods, ["iid"], attacks, defences, attackers=0.2, rounds=1, seeds=seeds)
    return [(cell.method, cell.attack, cell.defence, cell.seed) for cell in some]


def test_impossible_cells_are_left_out():
    found = grid(["fedavg", "ifca"])
    assert ("fedavg", "alie", "median", 0) in found
    assert ("ifca", "alie", "bound", 0) in found
    assert {cell[2] for cell in found if cell[0] == "ifca"} == {"none", "bound", "multi-krum"}
    assert {cell[0] for cell in found if cell[1] == "false-statistics"} == {"ifca"}


def test_each_seed_has_all_cells_before_the_next_one():
    seeds = [cell[3] for cell in grid(METHODS, seeds=2)]
    assert seeds == sorted(seeds)
    assert seeds.count(0) == seeds.count(1) == len(seeds) / 2
    assert PARTITIONS.keys() == {"iid", "halves", "dirichlet"}


def test_a_row_has_both_models_and_the_backdoor():
    cell = Cell("fedavg", "iid", "backdoor", "multi-krum", 0.2, 1, 0)
    (row,) = run(cell, lambda *done: None)
    scores = {"accuracy", "accuracy-common", "backdoor", "backdoor-common"}
    assert scores <= row.keys()
    assert all(0 <= row[name] <= 1 for name in scores)


def test_losses_are_to_the_run_of_the_same_seed_that_nobody_attacks():
    free, hit, mixed = [0.9, 0.8, 0.7], [0.5, 0.6, 0.1], [0.8, 0.8, 0.6]

    def rows(attack, defence, scores):
        part = {"method": "fedavg", "partition": "iid", "attack": attack, "defence": defence}
        return [part | {"seed": seed, "accuracy": score} for seed, score in enumerate(scores)]

    given = rows("alie", "mixing", mixed) + rows("alie", "bound", hit[::-1]) + rows("x", "x", [])
    given += rows("none", "bound", free)
    bound, mixing, greatest = (
        {column.header: list(column.cells) for column in table.columns}
        for table in sorted(tables(given), key=lambda table: str(table.title))
    )

    def interval(values):
        half = stats.t(len(values) - 1).ppf(0.975) * stats.sem(values)
        return f"{100 * np.mean(values):.1f} ± {100 * half:.1f}"

    found = interval(np.subtract(free, hit[::-1]))
    assert bound == {"method": ["fedavg"], "alie": [found], "none": [interval(free)]}
    assert mixing["alie"] == [interval(np.subtract(free, mixed))]
    assert mixing["none"] == [""]
    assert greatest["bound"] == [f"{found} (alie)"]


def test_one_seed_has_no_interval():
    for values, text in [([0.5], "50.0"), ([-1e-5, 0.0], "0.0 ± 0.0"), ([0.5, 0.5], "50.0 ± 0.0")]:
        with entry(values, text):
            assert percent(values) == text


def test_runs_that_are_done_are_not_run_again(tmp_path, capsys):
    part = {"method": "fedavg", "partition": "iid", "attack": "none", "defence": "bound"}
    options = {"attackers": 0.2, "rounds": 1, "seeds": 1, "processes": 1}
    main(tmp_path, **part, **options)
    assert "1 of 1 runs are left" in capsys.readouterr().out
    (kept,) = tmp_path.iterdir()
    (row,) = json.loads(kept.read_text())
    kept.write_text(json.dumps([row | {"accuracy": 0.321}]))
    main(tmp_path, **part, **options)
    told = capsys.readouterr().out
    assert "0 of 1 runs are left" in told
    assert "| fedavg | 32.1 |" in told
