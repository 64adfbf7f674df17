"""Table 3 and Figures 1 and 2 of the MOML paper, of what was measured, beside what it says."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from simulations.reproduce.plan import MATCHED, Steps
from simulations.reproduce.report import (
    COLORS,
    Row,
    by_name,
    draw_convergence,
    figures_of,
    png,
    title_of,
)
from simulations.reproduce.sinewave import UNSEEN

__all__ = ["CAPTION", "PUBLISHED_STEPS", "RECORDED_STEPS", "draw_figures", "summary", "table"]


class Published(NamedTuple):
    """An entry of Table 3: the test error, its s.d., and ms an iteration, for K = 1 and K = 3."""

    error: tuple[float, float]
    deviation: tuple[float, float]
    ms: tuple[float, float]


_MAML: Final = Published((0.889, 0.321), (0.021, 0.015), (1.713, 1.729))
TABLE_3: Final = {
    "maml": _MAML,  # "MAML (BSGD)"; without Hessians, as the authors have it, they are the same
    "bsgd": _MAML,
    "reptile": Published((1.212, 1.132), (0.054, 0.028), (1.380, 1.430)),
    "nasa": Published((0.361, 0.214), (0.010, 0.050), (17.524, 17.608)),
    "bspiderboost": Published((1.300, 0.650), (0.104, 0.042), (3.960, 4.159)),
    "moml-v1": Published((0.291, 0.196), (0.012, 0.068), (2.180, 2.294)),
    "moml-v2": Published((0.448, 0.268), (0.012, 0.026), (7.863, 8.016)),
    "local-moml": Published((0.462, 0.170), (0.043, 0.020), (2.556, 2.624)),
}

# The authors' step sizes, as steps per unit of gradient. Their gradients have no Hessians and,
# where there is a memory, an extra factor: beta; of MOML v2, whose memories they differentiate back
# to where a task was last drawn (with probability p = 3/25), the mean of 1 - (1 - beta)^(m + 1) for
# m iterations since, 1 - (1 - beta) p / (1 - (1 - p) (1 - beta)) = 0.48. Reptile's is times
# alpha, and halved, since ours makes two local steps where theirs makes one.
PUBLISHED_STEPS: Final[dict[int, Steps]] = {
    1: {
        "maml": (1.0, 0.001),
        "bsgd": (1.0, 0.001),
        "reptile": (1.0, 0.05 * 0.01 / 2),
        "nasa": (0.5, 0.05 * 0.5),
        "bspiderboost": (1.0, 0.001),
        "moml-v1": (0.3, 0.005 * 0.3),
        "moml-v2": (0.1, 0.005 * 0.48),
        "local-moml": (0.3, 0.005 * 0.3),
    },
    3: {
        "maml": (1.0, 0.005),
        "bsgd": (1.0, 0.005),
        "reptile": (1.0, 0.05 * 0.01 / 2),
        "nasa": (0.5, 0.05 * 0.5),
        "bspiderboost": (1.0, 0.005),
        "moml-v1": (0.5, 0.01 * 0.5),
        "moml-v2": (0.1, 0.01 * 0.48),
        "local-moml": (0.5, 0.01 * 0.5),
    },
}

# What --tune chose with Hessians and without; finite differences take the first. Of LocalMOML at
# K = 3 it is a smaller step, since with the one that was chosen one run in five diverged.
RECORDED_STEPS: Final[dict[str, dict[int, Steps]]] = {
    "exact": {
        1: {
            "maml": (1.0, 0.0005),
            "bsgd": (1.0, 0.005),
            "reptile": (1.0, 0.001),
            "nasa": (0.9, 0.005),
            "bspiderboost": (1.0, 0.001),
            "moml-v1": (0.7, 0.0002),
            "moml-v2": (0.3, 0.0005),
            "local-moml": (0.7, 0.0005),
        },
        3: {
            "maml": (1.0, 0.0002),
            "bsgd": (1.0, 0.005),
            "reptile": (1.0, 0.005),
            "nasa": (0.1, 0.005),
            "bspiderboost": (1.0, 0.005),
            "moml-v1": (0.1, 0.001),
            "moml-v2": (0.3, 0.0005),
            "local-moml": (0.7, 0.0002),
        },
    },
    "first-order": {
        1: {
            "maml": (1.0, 0.005),
            "bsgd": (1.0, 0.005),
            "reptile": (1.0, 0.005),
            "nasa": (0.3, 0.01),
            "bspiderboost": (1.0, 0.005),
            "moml-v1": (0.3, 0.005),
            "moml-v2": (0.1, 0.005),
            "local-moml": (0.3, 0.005),
        },
        3: {
            "maml": (1.0, 0.01),
            "bsgd": (1.0, 0.01),
            "reptile": (1.0, 0.005),
            "nasa": (0.7, 0.05),
            "bspiderboost": (1.0, 0.005),
            "moml-v1": (0.5, 0.01),
            "moml-v2": (0.1, 0.005),
            "local-moml": (0.5, 0.005),
        },
    },
}


def summary(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each batch size and method, over its seeds.

    It is ``figures_of`` them, and ``test-error``, the mean squared error on unseen tasks: infinite
    if a run of them diverged. Published figures are None where there are none.
    """
    return [_row(size, name, runs) for (size, name), runs in by_name(done).items()]


def _row(size: int, name: str, runs: Sequence[Row]) -> Row:
    tests = np.array([np.mean(run["tests"]) for run in runs], dtype=float)
    tests[~np.isfinite(tests)] = np.inf
    known = TABLE_3.get(name) if size in (1, 3) else None
    at = 0 if size == 1 else 1
    several = len(tests) > 1 and np.isfinite(tests).all()
    return {
        "batch-size": size,
        **figures_of(name, runs),
        "test-error": float(np.mean(tests)),
        "test-error-std": float(np.std(tests, ddof=1)) if several else None,
        "published": known and known.error[at],
        "published-std": known and known.deviation[at],
        "published-ms": known and known.ms[at],
    }


CAPTION: Final = """\
Squared error on 5 unseen tasks after 10 steps on 10 rows (mean over 20 draws
of these), mean ± s.d. over seeds, and the paper's; error on the training tasks;
milliseconds an iteration of one seed, of several at once, and the paper's"""


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows as a table; ``CAPTION`` says what they are."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    found.add_column("method", no_wrap=True)
    for heading in ("beta", "eta", "test error", "paper", "train", "ms", "paper"):
        found.add_column(heading, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        if i == 0 or rows[i - 1]["batch-size"] != row["batch-size"]:
            found.add_section()
            found.add_row(f"K = {row['batch-size']}")
        found.add_row(
            title_of(row["method"]),
            f"{row['beta']:g}",
            f"{row['eta']:g}",
            f"{row['diverged']} diverged"
            if row["diverged"]
            else _with_deviation(row["test-error"], row["test-error-std"]),
            _with_deviation(row["published"], row["published-std"]),
            "-" if row["diverged"] else f"{row['train-error']:.2f}",
            f"{row['ms']:.2f}",
            "-" if row["published-ms"] is None else f"{row['published-ms']:.1f}",
        )
    return found


def _with_deviation(value: float | None, deviation: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


# --- Figures -------------------------------------------------------------------------------


def draw_figures(done: Sequence[Row]) -> dict[str, bytes]:
    """Draws both figures; returns them as PNG, by the names of their files."""
    pictures = {"convergence.png": draw_convergence(done, "training error (1)", "log")}
    for size in sorted({run["batch-size"] for run in done}):
        runs = [run for run in done if run["batch-size"] == size]
        pictures[f"fits-k{size}.png"] = _draw_fits(runs)
    return pictures


def _draw_fits(runs: Sequence[Row]) -> bytes:
    """Draws what the first seed's models make of the unseen tasks (Figure 2)."""
    figure = Figure(figsize=(3.2 * len(UNSEEN), 3.4), layout="constrained")
    panels = figure.subplots(1, len(UNSEEN), sharex=True)
    x = np.linspace(-5, 5, len(runs[0]["fits"][0]))
    for task, axes in enumerate(panels):
        amplitude, phase = UNSEEN[task]
        axes.plot(x, amplitude * np.sin(x + phase), "k--", lw=2, label="truth")
        for color, ((_, name), found) in zip(COLORS, by_name(runs).items(), strict=False):
            if name != MATCHED:
                axes.plot(x, found[0]["fits"][task], color=color, lw=1.2, label=title_of(name))
        axes.set(title=f"{amplitude:.2f} sin(x + {phase:.2f})", xlabel="x", ylim=(-6.5, 6.5))
        axes.grid(alpha=0.3)
    figure.suptitle(f"K = {runs[0]['batch-size']}: after 10 steps on 10 rows of an unseen task")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return png(figure)
