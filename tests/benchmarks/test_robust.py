"""The grid of attacks and defences: its cells, one run, and going on with what is there."""

import json

from benchmarks.robust import ATTACKS, DEFENCES, METHODS, PARTITIONS, Cell, cells, main, run, table


def grid(methods, attacks=ATTACKS, defences=DEFENCES, seeds=1):
    some = cells(methods, ["iid"], attacks, defences, attackers=0.2, rounds=1, seeds=seeds)
    return [(cell.method, cell.attack, cell.defence, cell.seed) for cell in some]


def test_impossible_cells_are_left_out():
    found = grid(["fedavg", "ifca"])
    assert ("fedavg", "alie", "median", 0) in found
    assert ("ifca", "alie", "bound", 0) in found
    assert not [cell for cell in found if cell[0] == "ifca" and cell[2] not in ("none", "bound")]
    assert [cell[0] for cell in found if cell[1] == "false-statistics"] == ["ifca", "ifca"]


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
    assert table([row, {**row, "seed": 1}]).row_count == 1


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
    assert "32.1" in told
