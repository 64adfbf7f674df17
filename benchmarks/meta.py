"""Times iterations of meta-learning on sinewaves: ours, and a plain loop over runs and tasks.

``python -m benchmarks.meta`` prints milliseconds an iteration of one run. The contenders take
turns, so that each ratio is of times from the same minutes. The loop is usual PyTorch autograd: one
task at a time, with ``create_graph`` for exact Hessians.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import torch
import typer
from torch.nn import functional

from benchmarks.harness import in_turns, numbers_table
from engram.cli.console import out
from engram.core.types import Batch
from engram.meta.studies.methods import METHODS, RuleArguments
from engram.meta.studies.sinewave import ALPHA, Sinewave
from engram.meta.studies.sweep import EpisodeSampler, episodes

_BETA, _ETA, _TASKS, _ROWS = 0.3, 0.0002, 3, 1
_PER_TURN: Final = 50  # iterations


def time_meta(
    methods: Sequence[str], *, turns: int, runs: Sequence[int], hessian: str
) -> list[dict[str, Any]]:
    """Times each method with each number of runs at once, and the loop with one.

    Returns:
        Rows with ``method``, ``runs`` (0 for the loop) and ``ms``, of one iteration of one run:
        the median over turns.
    """
    torch.set_num_threads(1)
    contenders: dict[tuple[str, int], Callable[[int], object]] = {}
    for method in methods:
        for count in runs:
            contenders[method, count] = ours(method, count, hessian)
    for method in {"maml", "moml-v1"} & set(methods):
        contenders[method, 0] = loop(method, hessian)
    return [
        {"method": method, "runs": count, "ms": ms / _PER_TURN / max(count, 1)}
        for (method, count), ms in sorted(in_turns(contenders, turns).items())
    ]


def _arguments(problem: Sinewave, hessian: str) -> RuleArguments:
    return RuleArguments(problem.loss, None, problem.tasks, _TASKS, _ROWS, ALPHA, hessian)


def ours(method: str, runs: int, hessian: str) -> Callable[[int], Any]:
    """Builds a turn of our runs, which returns their state."""
    problem = Sinewave()
    ones = torch.ones(runs)
    beta = 1.0 if len(METHODS[method].betas) == 1 else _BETA
    rule = METHODS[method].build(_arguments(problem, hessian), beta * ones, _ETA * ones)
    sampler = EpisodeSampler(range(runs), problem.tasks, rule.draws)
    shown = [tuple(episodes(problem, sampler, rule, t)) for t in range(_PER_TURN)]
    start = problem.layout.pack([problem.start(seed) for seed in range(runs)])

    def turn(_: int) -> Any:
        state = rule.init(start)
        for seen in shown:
            state = rule.step(state, seen)
        return state

    return turn


def loop(method: str, hessian: str) -> Callable[[int], list[torch.Tensor]]:
    """Builds a turn of MOML v1 or MAML, as commonly written, that returns one run's model."""
    problem = Sinewave()
    ones = torch.ones(1)
    rule = METHODS["moml-v1"].build(_arguments(problem, hessian), ones, ones)
    sampler = EpisodeSampler([0], problem.tasks, rule.draws)
    shown = [next(episodes(problem, sampler, rule, t)) for t in range(_PER_TURN)]
    beta = _BETA if method == "moml-v1" else 1.0

    def turn(_: int) -> list[torch.Tensor]:
        w = [leaf.clone().requires_grad_() for leaf in problem.start(0).values()]
        memories: dict[int, list[torch.Tensor]] = {}
        for tasks, batches in shown:
            total = [torch.zeros_like(leaf) for leaf in w]
            for i, task in enumerate(tasks[0].tolist()):
                first, *second, third = ((x[0, i], y[0, i]) for x, y in batches)
                gradients = torch.autograd.grad(_loss(w, first), w)
                fresh = [a - ALPHA * b for a, b in zip(w, gradients, strict=True)]
                old = memories.get(task, fresh)
                u = [(1 - beta) * a + beta * b for a, b in zip(old, fresh, strict=True)]
                memories[task] = u = [leaf.detach().requires_grad_() for leaf in u]
                delta = list(torch.autograd.grad(_loss(u, third), u))
                if second:
                    gradients = torch.autograd.grad(_loss(w, second[0]), w, create_graph=True)
                    product = torch.autograd.grad(gradients, w, delta)
                    delta = [a - ALPHA * b for a, b in zip(delta, product, strict=True)]
                total = [a + b / _TASKS for a, b in zip(total, delta, strict=True)]
            w = [(a - _ETA * b).detach().requires_grad_() for a, b in zip(w, total, strict=True)]
        return w

    return turn


def _loss(w: Sequence[torch.Tensor], batch: Batch) -> torch.Tensor:
    x, y = batch
    for i in range(0, len(w), 2):
        x = functional.linear(x.relu() if i else x, w[i], w[i + 1])
    return functional.mse_loss(x, y)


def main(
    turns: Annotated[int, typer.Option(min=1, help="Turns of 50 iterations.")] = 5,
    hessian: Annotated[str, typer.Option(help="exact or first-order.")] = "exact",
) -> None:
    """Prints a table."""
    runs = (1, 5, 40)
    methods = [name for name in METHODS if name not in ("protonet", "bsgd")]
    found = time_meta(methods, turns=turns, runs=runs, hessian=hessian)
    ms = {(row["method"], row["runs"]): row["ms"] for row in found}
    title = f"milliseconds an iteration of one run, K = {_ROWS}, B = {_TASKS}, {hessian}"
    heads = ("torch loop", *(f"{count} at once" for count in runs))
    table = numbers_table("method", *heads, title=title)
    for method in methods:
        cells = [ms.get((method, count)) for count in (0, *runs)]
        table.add_row(method, *("-" if cell is None else f"{cell:.3f}" for cell in cells))
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
