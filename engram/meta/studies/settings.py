"""Settings of the MOML paper's experiments."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engram.core.checks import must
from engram.data.source import Source
from engram.meta.studies.published import (
    FEDERATED_ROWS,
    FEDERATED_SETTINGS,
    ONE_SHOT_STEPS,
    SINEWAVE_STEPS,
    SPLITS,
)
from engram.studies.settings import StudySettings, argument, option

_HESSIANS: Final = "engram.meta.meta_gradient:HESSIANS"


def _iterations(default: int) -> Any:
    about = "Iterations of MAML; the other methods see as many rows."
    return option(default, metavar="N", least=1, most=10**9, help=about)


def _seeds(default: int) -> Any:
    return option(default, least=1, most=1000, help="Runs of each method.")


@dataclass(frozen=True)
class MetaLearningSettings(StudySettings):
    """Settings of both experiments; each has further settings, and other defaults."""

    methods: tuple[str, ...]
    iterations: int
    seeds: int
    tasks_per_step: int = option(3, metavar="B", least=1, help="Tasks in an iteration.")
    hessian: str | None = option(
        None,
        metavar="HOW",
        among=_HESSIANS,
        help="exact (the default), first-order, finite-difference.",
    )
    tune: bool = option(False, help="Choose eta and beta on a grid, by the training tasks.")
    published: bool = option(False, help="The authors' eta and beta, and first-order gradients.")

    def problems(self) -> Iterator[str]:
        """Names options that are not compatible."""
        if self.tune and self.published:
            yield "--tune and --published exclude each other"
        if self.published and self.hessian not in (None, "first-order"):
            yield f"--published is first-order, got --hessian {self.hessian}"

    @property
    def curvature(self) -> str:
        """Treatment of Hessians, one of ``meta_gradient.HESSIANS``."""
        return self.hessian or ("first-order" if self.published else "exact")


@dataclass(frozen=True)
class SinewaveSettings(MetaLearningSettings):
    """Sinewave regression: Table 3 and Figures 1 to 3 of the MOML paper (Sec. 6.1).

    METHOD is maml, bsgd, reptile, nasa, bspiderboost, moml-v1, moml-v2 or local-moml.

    Without options: 40,000 iterations, 5 seeds, exact Hessians, and the step
    sizes that --tune chose (of LocalMOML at K = 3 smaller: a run diverged).
    """

    methods: tuple[str, ...] = argument(
        (), metavar="[METHOD]...", among=tuple(SINEWAVE_STEPS["exact"][1]), help="Methods to run."
    )
    batch_sizes: tuple[int, ...] = option(
        (1, 3), flags=("--batch-size", "-k"), metavar="K", least=1, help="May be repeated."
    )
    iterations: int = _iterations(40_000)
    seeds: int = _seeds(5)


@dataclass(frozen=True)
class OneShotSettings(MetaLearningSettings):
    """One-shot classification: Table 4 of the MOML paper (Sec. 6.2).

    METHOD is maml, reptile, protonet, nasa, moml-v1, moml-v2 or local-moml.

    Without options: Omniglot, 2000 iterations, 3 seeds, exact Hessians, and step
    sizes that do well with these. Tested in 200 episodes of tasks whose classes
    are in no other task.
    """

    methods: tuple[str, ...] = argument(
        (), metavar="[METHOD]...", among=tuple(ONE_SHOT_STEPS), help="Methods to run."
    )
    dataset: str = option(
        "omniglot", metavar="NAME", among=tuple(SPLITS), help="omniglot or cifar100."
    )
    data_dir: Path = option(Path("data"), metavar="DIR", help="Folder of its files.")
    iterations: int = _iterations(2000)
    seeds: int = _seeds(3)

    @property
    def detail(self) -> str:
        """The data set."""
        return f"-{self.dataset}"


@dataclass(frozen=True)
class FederatedSettings(StudySettings):
    """Federated image classification: Table 5 of the MOML paper (Sec. 6.3).

    METHOD is local-moml, per-fedavg, pfedme, or a reference: fedavg, local.

    50 clients on 4 machines; in a round, B clients of each machine make H local
    steps. Each is scored after 10 steps of fine-tuning on 5 of its test rows, on
    the others. Without options: the paper's three methods on MNIST, all its B and
    H, 10,000 rounds and 3 seeds, which takes hours; --rounds 1000 shows the way.
    """

    methods: tuple[str, ...] = argument(
        ("local-moml", "per-fedavg", "pfedme"),
        metavar="[METHOD]...",
        among=tuple(FEDERATED_SETTINGS),
        help="Methods to run.",
    )
    tasks: tuple[int, ...] = option(
        (1, 5), flags=("--task", "-b"), metavar="B", least=1, most=12, help="May be repeated."
    )
    local_steps: tuple[int, ...] = option(
        (4, 10), flags=("--local-step", "-h"), metavar="H", least=1, help="May be repeated."
    )
    dataset: str = option(
        "mnist", metavar="NAME", help=f"{', '.join(FEDERATED_ROWS)}; or npz:PATH, as mnist."
    )
    data_dir: Path = option(Path("data"), metavar="DIR", help="Folder of its files.")
    rounds: int = option(10_000, metavar="N", least=1, most=10**6, help="Rounds of each run.")
    seeds: int = _seeds(3)

    def problems(self) -> Iterator[str]:
        """Names a data set that is not known."""
        if self.dataset not in FEDERATED_ROWS and Source(self.dataset).kind != "npz":
            known = f"one of {', '.join(FEDERATED_ROWS)}, or npz:PATH"
            yield must("dataset", self.dataset, known)

    @property
    def published(self) -> str:
        """Data set of the paper's figures for comparison."""
        return self.dataset if self.dataset in FEDERATED_ROWS else "mnist"
