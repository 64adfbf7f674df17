"""`engram reproduce sinewave`: the problem by hand, sweeps, budgets, tuning, resuming, refusals."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.func import grad
from typer.testing import CliRunner

from engram.meta.single_node import Draw, Episode, in_memory
from engram.models import build_model, squared_error
from engram.tree import add_scaled
from federation.errors import Refused, RunStopped
from federation.fingerprint import source_root
from simulations.cli import app
from simulations.reproduce import cli as reproduce
from simulations.reproduce import sweep as sweeps
from simulations.reproduce.lottery import Lottery
from simulations.reproduce.methods import METHODS, Setting
from simulations.reproduce.plan import Case, Plan, read_plan, write_plan
from simulations.reproduce.rooms import mapped
from simulations.reproduce.sinewave import UNSEEN, Sinewave
from simulations.reproduce.sinewave_report import PUBLISHED_STEPS, RECORDED_STEPS, summary
from simulations.reproduce.sweep import Run, Sweep, check_room, check_sweep, run_sweep
from simulations.reproduce.workers import carry_out

NETWORK = build_model("mlp", input_shape=(1,), outputs=1, hidden=(40, 40))
LOSS = squared_error(NETWORK)
REGRESSIONS = [name for name in METHODS if name != "protonet"]


@pytest.fixture(scope="module")
def waves():
    return Sinewave()


def sweep(*runs, iterations=12, size=2, hessian="exact"):
    return Sweep(tuple(runs), size, 3, 0.01, hessian, iterations)


def run(method, seed=0, beta=0.5, eta=0.01):
    return Run(method, method, beta, eta, seed)


def invoke(folder, *arguments):
    # Without the process's own handlers, an error comes as it is raised.
    fixed = ["reproduce", "sinewave", "--processes", "1", "--out", str(folder)]
    return CliRunner().invoke(app, [*fixed, *arguments])


# --- Draws -------------------------------------------------------------------------------


def test_draws_depend_on_seed_and_iteration_alone():
    few, many = Draw(3, (2, 2)), Draw(None, (5,))
    alone = Lottery([4], 25, lambda t: (few,))
    beside = Lottery([7, 4, 9, 4], 25, lambda t: (few, many))
    for t in (0, 1, 63, 64, 200):
        (mine,), (theirs, _) = alone.draw(t), beside.draw(t)
        for r in (1, 3):
            assert mine.tasks[0].equal(theirs.tasks[r])
            assert mine.chances[0].equal(theirs.chances[r])
        assert not theirs.chances[0].equal(theirs.chances[1])
    again = Lottery([4], 25, lambda t: (few,))
    assert again.draw(63)[0].chances.equal(alone.draw(63)[0].chances)
    assert not again.draw(64)[0].chances.equal(alone.draw(0)[0].chances)


def test_tasks_are_drawn_uniformly_without_replacement():
    lottery = Lottery([0], 5, lambda t: (Draw(2, (1,)), Draw(2, (1,)), Draw(None, (1,))))
    counts = torch.zeros(2, 5, 5)
    for t in range(4000):
        *pairs, every = lottery.draw(t)
        assert every.tasks.tolist() == [[0, 1, 2, 3, 4]]
        for i, pair in enumerate(pairs):
            a, b = pair.tasks[0].tolist()
            counts[i, a, b] += 1
    assert (counts.diagonal(dim1=1, dim2=2) == 0).all()
    # Each ordered pair 4000 / 20 = 200 times, s.d. 13.8.
    others = counts[:, ~torch.eye(5, dtype=torch.bool)]
    assert (others - 200).abs().max() < 5 * 13.8


# --- The problem -------------------------------------------------------------------------


def test_training_tasks_are_the_papers(waves):
    tasks = torch.arange(25).unsqueeze(0)
    x, y = waves.batch(tasks, torch.full((1, 25, 1), 0.65))
    assert x[0, :, 0, 0].tolist() == pytest.approx([1.5] * 25)
    wanted = [a * math.sin(i * math.pi / 5 + 1.5) for a in range(1, 6) for i in range(1, 6)]
    assert y[0, :, 0, 0].tolist() == pytest.approx(wanted, abs=1e-5)


def adapt(w, batch, steps):
    for _ in range(steps):
        w = add_scaled(w, -0.01, grad(LOSS)(w, batch))
    return w


def rows(amplitude, phase, chances):
    x = (10 * chances - 5).unsqueeze(-1)
    return x, amplitude * torch.sin(x + phase)


def test_errors_by_hand(waves):
    models = [waves.start(0), waves.start(1)]
    w = waves.layout.pack(models)
    errors, found = waves.error(w, "maml"), waves.test(w)
    for r, model in enumerate(models):
        total = 0.0
        for i in range(25):
            amplitude, phase = 1 + i // 5, (1 + i % 5) * math.pi / 5
            seen = waves._seen_points[i]
            near = adapt(model, rows(amplitude, phase, seen[:100]), 1)
            total += LOSS(near, rows(amplitude, phase, seen[100:])).item() / 25
        assert errors[r].item() == pytest.approx(total, rel=1e-4)
        for i, (amplitude, phase) in enumerate(UNSEEN):
            drawn = range(i, 100, 5)
            losses = [
                LOSS(
                    adapt(model, rows(amplitude, phase, waves._shots[j]), 10),
                    rows(amplitude, phase, waves._points[j]),
                ).item()
                for j in drawn
            ]
            assert found.errors[r, i].item() == pytest.approx(sum(losses) / 20, rel=1e-3)
        near = adapt(model, rows(*UNSEEN[0], waves._shots[0]), 10)
        fit = NETWORK.apply(near, torch.linspace(-5, 5, 100).unsqueeze(1))[:, 0]
        torch.testing.assert_close(found.fits[r, 0], fit, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(w, waves.layout.pack(models))  # tested on copies


def test_rows_to_adapt_to_are_others_than_those_to_score_on(waves):
    for shots, points in zip(waves._shots, waves._points, strict=True):
        assert not set(shots.tolist()) & set(points.tolist())


# --- Sweeps ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REGRESSIONS)
def test_runs_of_a_sweep_are_the_same_alone(waves, method):
    pair = run(method, seed=1, eta=0.001), run(method, seed=2, eta=0.005, beta=0.9)
    both = run_sweep(waves, sweep(*pair))
    for r in range(2):
        alone = run_sweep(waves, sweep(pair[r]))
        torch.testing.assert_close(alone.w["flat"][0], both.w["flat"][r], rtol=0, atol=2e-6)
        np.testing.assert_allclose(alone.errors[0], both.errors[r], rtol=1e-4)
        assert alone.samples == both.samples


@pytest.mark.parametrize("method", REGRESSIONS)
def test_a_run_that_diverges_leaves_the_others_alone(waves, method):
    fine = run(method, eta=0.001, beta=0.9)
    pair = run_sweep(waves, sweep(run(method, eta=1e4, beta=0.9), fine, iterations=50))
    alone = run_sweep(waves, sweep(fine, iterations=50))
    assert np.isinf(pair.errors[0, -1])
    assert pair.w["flat"][0].isnan().all()
    torch.testing.assert_close(pair.w["flat"][1], alone.w["flat"][0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(pair.errors[1], alone.errors[0], rtol=1e-4)


@pytest.mark.parametrize("hessian", ["exact", "first-order"])
@pytest.mark.parametrize("method", REGRESSIONS)
def test_all_methods_see_as_many_rows(waves, method, hessian):
    trace = run_sweep(waves, sweep(run(method), iterations=200, hessian=hessian))
    budget = 200 * 3 * 2 * (3 if hessian == "exact" else 2)
    assert budget - 25 * 2 * 3 < trace.samples[-1] <= budget  # NASA sees most in an iteration
    assert len(trace.errors[0]) == len(trace.samples) == 1 + min(40, trace.iterations)


@pytest.mark.parametrize("method", ["moml-v1", "bspiderboost"])
def test_eta_falls_to_a_tenth_in_the_last_quarter_but_for_bspiderboost(waves, method):
    setting = Setting(waves.loss, None, 25, 3, 2, 0.01, "exact", in_memory)
    one, total = torch.ones(1), 8 if method == "moml-v1" else 6
    fast, slow = (METHODS[method].build(setting, one, eta * one) for eta in (0.02, 0.002))
    lottery = Lottery([0], 25, fast.draws)
    state = fast.init(waves.layout.pack([waves.start(0)]))
    for t in range(total):
        rule = slow if t >= 6 and method == "moml-v1" else fast
        drawn = [
            Episode(tasks, tuple(zip(*(part.split(2, 2) for part in rows), strict=True)))
            for tasks, chances in lottery.draw(t)
            for rows in [waves.batch(tasks, chances)]
        ]
        state = rule.step(state, tuple(drawn))
    # As many rows as 8 iterations of MAML see are 6 of BSpiderBoost: 10 + 3 + 3 tasks, two batches.
    found = run_sweep(waves, sweep(run(method, eta=0.02, beta=1.0), iterations=8))
    assert found.iterations == total
    torch.testing.assert_close(found.w, state.w, rtol=0, atol=1e-7)


def test_memories_in_files_are_the_same(waves, tmp_path):
    for method in ("moml-v1", "moml-v2"):
        kept = run_sweep(waves, sweep(run(method)), memory_dir=tmp_path)
        torch.testing.assert_close(kept.w, run_sweep(waves, sweep(run(method))).w, rtol=0, atol=0)
    assert list(tmp_path.iterdir()) == []


def test_memories_that_do_not_fit_are_refused(waves, monkeypatch, tmp_path):
    monkeypatch.setattr(sweeps, "available", lambda device: 300_000)
    v1, averages, none = (check_sweep(waves, sweep(run(m))) for m in ("moml-v1", "nasa", "bsgd"))
    assert (v1.size, averages.size, none.size) == (25 * 1761 * 4, 25 * 1761 * 4, 0)
    check_room([v1, none], None)
    message = r"moml-v1 keeps 25 models of 1761 .* 0.3 MiB, and 0.3 MiB are free: name a --memory"
    with pytest.raises(Refused, match=message):
        check_room([v1, v1], None)
    check_room([v1, v1, averages], tmp_path)
    with pytest.raises(Refused, match=r"nasa keeps 25 models .* MiB are free$"):
        check_room([averages, averages], tmp_path)  # which computes with all of them


def test_the_command_says_what_memories_need(tmp_path):
    arguments = ["moml-v1", "maml", "-k", "1", "--iterations", "2", "--seeds", "2"]
    result = invoke(tmp_path / "run", *arguments, "--memory-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    need = 25 * 1761 * 4 * 2 / 2**20
    assert f"tasks' models take {need:.1f} MiB in {tmp_path}\n" in result.stderr


def test_a_disk_without_room_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"has no room of 4096.0 GiB for memories \(flat\)"):
        mapped(tmp_path)("flat", (1, 2**20, 2**20), torch.zeros(1))
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_classes_is_needed_to_match_prototypes(waves):
    setting = Setting(waves.loss, None, 25, 3, 2, 0.01, "exact", in_memory)
    with pytest.raises(ValueError, match="protonet tells classes apart"):
        METHODS["protonet"].build(setting, torch.ones(1), torch.ones(1))


# --- The command -------------------------------------------------------------------------


def test_sinewave_gives_a_table_and_figures(tmp_path):
    out = tmp_path / "run"
    result = invoke(out, "--iterations", "40", "--seeds", "2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == json.loads((out / "results.json").read_text())
    rows = {(row["batch-size"], row["method"]): row for row in found["rows"]}
    assert len(rows) == 2 * 9  # Table 3, BSGD and MAML apart, and MAML with MOML v1's step
    assert rows[1, "maml"]["iterations"] == 40
    assert rows[1, "nasa"]["iterations"] == 40 * 3 // 25
    assert rows[1, "bspiderboost"]["iterations"] == 33  # (10 + 2 * 3) / 3 tasks, of 2 batches
    assert rows[1, "local-moml"]["iterations"] == 5 * (40 * 9 // 51)  # 3 * (2 + 5 * 3) rows
    assert rows[3, "maml-matched"]["eta"] == rows[3, "moml-v1"]["eta"]
    assert rows[1, "moml-v1"]["published"] == 0.291
    assert all(row["test-error"] > 0 and row["runs"] == 2 for row in rows.values())
    assert {path.name for path in out.glob("*.png")} == {
        "convergence.png",
        "fits-k1.png",
        "fits-k3.png",
    }
    assert "MAML, v1's eta" in result.stdout


def test_an_interrupted_reproduction_goes_on(tmp_path, monkeypatch):
    arguments = ["maml", "nasa", "reptile", "-k", "2", "--iterations", "30", "--seeds", "1"]
    whole = invoke(tmp_path / "whole", *arguments)
    assert whole.exit_code == 0, whole.output
    real, calls = run_sweep, []

    def interrupted(*args, **given):
        calls.append(args)
        if len(calls) == 2:
            given["report"](1, 30)
            raise KeyboardInterrupt
        return real(*args, **given)

    monkeypatch.setattr("simulations.reproduce.workers.run_sweep", interrupted)
    part = tmp_path / "part"
    stopped = invoke(part, *arguments)
    assert stopped.exit_code == 130
    assert f"engram reproduce sinewave --resume {part}" in stopped.output
    done = CliRunner().invoke(
        app, ["reproduce", "sinewave", "--processes", "1", "--resume", str(part)]
    )
    assert done.exit_code == 0, done.output
    assert len(calls) == 2 + 2  # the first was kept
    one, other = (
        json.loads((tmp_path / n / "results.json").read_text()) for n in ("whole", "part")
    )
    for a, b in zip(one["rows"], other["rows"], strict=True):
        assert {k: v for k, v in a.items() if k != "ms"} == {
            k: v for k, v in b.items() if k != "ms"
        }


def test_processes_give_what_one_gives(tmp_path):
    arguments = ["maml", "nasa", "reptile", "-k", "2", "--iterations", "20", "--seeds", "1"]
    assert invoke(tmp_path / "one", *arguments).exit_code == 0
    result = invoke(tmp_path / "two", *arguments, "--processes", "2")
    assert result.exit_code == 0, result.output
    one, two = (
        [row | {"ms": 0} for row in json.loads((tmp_path / n / "results.json").read_text())["rows"]]
        for n in ("one", "two")
    )
    assert one == two


class Refusing(Sinewave):
    def measure(self, w, method):
        del w, method
        raise Refused("no")


class Killed(Sinewave):
    def measure(self, w, method):
        del w, method
        os.kill(os.getpid(), signal.SIGKILL)


class Broken(Sinewave):
    def measure(self, w, method):
        del w, method
        raise ZeroDivisionError("of the test")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (Refusing, Refused, "^no$"),
        (Broken, RuntimeError, "ZeroDivisionError: of the test"),
        (Killed, RunStopped, "a process ended with status -9; what is done is kept"),
    ],
)
def test_what_goes_wrong_in_a_process_is_said(tmp_path, make, error, message):
    plan = Plan(
        experiment="sinewave",
        dataset="",
        data_dir="",
        methods=("maml", "bsgd"),
        batch_sizes=(1,),
        iterations=2,
        seeds=(0,),
        tasks_per_step=3,
        hessian="exact",
        alpha=0.01,
        adapt_lr=0.01,
        steps="published",
        step_sizes={"1": PUBLISHED_STEPS[1]},
    )
    with pytest.raises(error, match=message):
        carry_out(plan, Case(make, ()), tmp_path, processes=2, begin=print, tell=lambda *news: None)
    assert list(tmp_path.iterdir()) == []


def test_tuning_takes_what_training_tasks_like_best(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "GRID", (1e-6, 0.003, 5.0))  # stands still, learns, diverges
    out = tmp_path / "run"
    result = invoke(
        out, "maml", "moml-v1", "-k", "5", "--iterations", "300", "--seeds", "1", "--tune"
    )
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert {row["eta"] for row in rows} == {0.003}
    tried = json.loads((out / "tune-moml-v1-k5.json").read_text())
    assert {run["seed"] for run in tried} == {1, 2}  # none of the runs'
    assert len(tried) == 2 * 3 * 5
    (mine,) = [row for row in rows if row["method"] == "moml-v1"]
    errors = {
        beta: sum(
            sum(run["errors"][-5:])
            for run in tried
            if (run["method"], run["beta"], run["eta"]) == ("moml-v1", beta, 0.003)
        )
        for beta in METHODS["moml-v1"].betas
    }
    assert mine["beta"] == min(errors, key=errors.get)


def test_published_steps_are_the_authors(tmp_path):
    out = tmp_path / "run"
    result = invoke(out, "moml-v1", "-k", "1", "--iterations", "2", "--seeds", "1", "--published")
    assert result.exit_code == 0, result.output
    plan = json.loads((out / "plan.json").read_text())
    assert (plan["hessian"], plan["steps"]) == ("first-order", "published")
    (row,) = json.loads((out / "results.json").read_text())["rows"]
    assert (row["beta"], row["eta"]) == (0.3, pytest.approx(0.0015))


def test_steps_are_known_for_every_method():
    tables = [PUBLISHED_STEPS, *RECORDED_STEPS.values()]
    for steps in (steps for table in tables for steps in table.values()):
        assert steps.keys() == set(REGRESSIONS)
        for method, (beta, eta) in steps.items():
            assert 0 < beta <= 1
            assert beta == 1 or METHODS[method].betas != (1.0,)
            assert 0 < eta <= 0.1


def test_a_run_that_diverged_is_said_so():
    common = {"batch-size": 1, "name": "maml", "method": "maml", "beta": 1.0, "eta": 9.0}
    common |= {"iterations": 10, "seconds": 1.0, "samples": [0]}
    fine = common | {"tests": [1.0, 2.0], "errors": [1.0]}
    runs = [fine, common | {"tests": [math.nan, 1.0], "errors": [math.inf]}]
    (row,) = summary(runs)
    assert row["diverged"] == 1
    assert math.isinf(row["test-error"])
    assert row["test-error-std"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["moml"], "method must be one of maml, bsgd"),
        (["maml", "maml"], "methods must be named once each, got maml, maml"),
        (
            ["moml-v1", "--tasks-per-step", "26"],
            "tasks-per-step must be at most 25, the number of tasks, got 26",
        ),
        (["bsgd", "--tasks-per-step", "26"], "an iteration draws 26 tasks, and there are 25"),
        (["--tasks-per-step", "0"], "tasks-per-step must be at least 1, got 0"),
        (["-k", "0"], "batch-size must be at least 1, got 0"),
        (["--iterations", "0"], "iterations must be at least 1, got 0"),
        (["--hessian", "none"], "hessian must be one of exact, first-order"),
        (["--tune", "--published"], "--tune and --published exclude each other"),
        (["--published", "--hessian", "exact"], "--published is first-order"),
        (["protonet"], "method must be one of maml, bsgd"),
        (["--memory-dir", "/nowhere"], "--memory-dir must be a folder that is there, got /nowhere"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(tmp_path, arguments, message):
    result = invoke(tmp_path / "run", *arguments)
    assert isinstance(result.exception, Refused), result.output
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_resuming_what_is_no_reproduction_is_refused(tmp_path):
    for extra in ([], ["maml"]):
        with pytest.raises(Refused, match="give nothing else" if extra else "has no plan.json"):
            CliRunner().invoke(
                app,
                ["reproduce", "sinewave", "--resume", str(tmp_path), *extra],
                catch_exceptions=False,
            )


def test_two_runs_do_not_share_a_folder(tmp_path):
    out = tmp_path / "run"
    few = ["maml", "-k", "1", "--iterations", "2", "--seeds", "1"]
    assert invoke(out, *few).exit_code == 0
    (out / "results.json").unlink()
    # As if both had looked for a free name before either wrote.
    with pytest.raises(Refused, match="is another run's: name another --out"):
        write_plan(out, read_plan(out))


def test_damaged_folders_are_refused(tmp_path):
    out = tmp_path / "run"
    assert invoke(out, "maml", "-k", "1", "--iterations", "2", "--seeds", "1").exit_code == 0
    resume = ["reproduce", "sinewave", "--resume", str(out), "--processes", "1"]
    (out / "maml-k1.json").write_text("[{")
    with pytest.raises(Refused, match=r"maml-k1.json is damaged: remove it"):
        CliRunner().invoke(app, resume, catch_exceptions=False)
    plan = json.loads((out / "plan.json").read_text())
    (out / "plan.json").write_text(json.dumps(plan | {"methods": ["mom"]}))
    with pytest.raises(Refused, match="method must be one of maml"):
        CliRunner().invoke(app, resume, catch_exceptions=False)
    (out / "plan.json").write_text("{}")
    with pytest.raises(Refused, match=r"plan.json is damaged"):
        CliRunner().invoke(app, resume, catch_exceptions=False)


def alive(session):
    """Whether a process of the session is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("wait", [2.0, 8.0])  # while processes begin, and when they work
def test_ctrl_c_ends_all_processes_with_one_line(tmp_path, wait):
    command = [sys.executable, "-m", "simulations", "reproduce", "sinewave", "maml", "nasa"]
    running = subprocess.Popen(
        [*command, "--processes", "2", "--out", str(tmp_path / "run")],
        cwd=source_root(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(wait)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    until = time.monotonic() + 10
    while alive(running.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(running.pid)


def test_memory_beats_maml_at_the_same_step(waves):
    # Without Hessians, as the paper's figures are; with K = 1, MAML's adaptation is mostly noise.
    errors = {}
    for method, beta in (("maml", 1.0), ("moml-v1", 0.3)):
        runs = [run(method, seed=seed, beta=beta, eta=0.01) for seed in range(4)]
        trace = run_sweep(waves, sweep(*runs, iterations=4000, size=1, hessian="first-order"))
        errors[method] = trace.errors[:, -1]
    assert (errors["moml-v1"] < 0.9 * errors["maml"]).all()
