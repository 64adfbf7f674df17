"""Settings of the MOLAR paper's experiments."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engram.data.source import Source
from engram.studies.settings import StudySettings, argument, option

_KINDS: Final = {".csv": "csv", ".xlsx": "xlsx", ".npz": "npz"}


def table_source(path: Path) -> Source:
    """Returns a table's file as a data set: ``csv:PATH`` or ``npz:PATH``."""
    return Source(f"{_KINDS[path.suffix.lower()]}:{path}")


def _table_faults(path: Path, task: str, target: str) -> Iterator[str]:
    if path.suffix.lower() not in _KINDS:
        yield f"TABLE must be a .csv, .xlsx or .npz file, got {path}"
    if task == target:
        yield f"--task and --target must be different columns, got {task!r} for both"


@dataclass(frozen=True)
class MolarRegressionSettings(StudySettings):
    """Multitask linear regression: Figures 2, 3, 7, 8, 9 of the MOLAR paper.

    The l1 error of MOLAR and of other estimators for growing numbers of rows,
    of tasks, and of coefficients in which tasks differ (2); with correlated
    covariates and unequal sizes (8); compared with debiasing around the median
    (9); and MOLAR's error for growing numbers of coefficients (3), and for other
    thresholds (7).
    """

    figures: tuple[int, ...] = option(
        (2, 3, 8),
        metavar="N",
        among="engram.tables.studies.regression_trials:FIGURES",
        help="2, 3, 7, 8 or 9; may be repeated.",
    )
    trials: int = option(10, metavar="N", least=1, most=10_000, help="Trials of each figure.")


@dataclass(frozen=True)
class MolarBanditSettings(StudySettings):
    """Multitask contextual bandits: Figures 4, 5, 6, 10 of the MOLAR paper.

    The regret of MOLARB and of four other policies, in 20 bandits with 3 arms
    whose 30 coefficients differ from each other in few (4), or on a table such
    as PISA's, where the arms are two rows of a task, and each policy has its
    best constant (5; results.json has all tasks, as Figure 6); and of MOLARB for
    other first batches, thresholds and histories (10).
    """

    figure: int = option(
        4, metavar="N", among="engram.tables.studies.bandit:FIGURES", help="4, 5 or 10."
    )
    table: Path | None = option(
        None, metavar="TABLE", help="Of --figure 5: a .csv or .xlsx file with a header, or .npz."
    )
    task: str = option("", metavar="COLUMN", help="Of the table: each row's task (country).")
    target: str = option("", metavar="COLUMN", help="Of the table: the values to choose by.")
    horizon: int = option(5000, metavar="T", least=1, most=10**8, help="Rounds of a trial.")
    trials: int = option(20, metavar="N", least=1, most=10_000, help="Number of random trials.")

    def problems(self) -> Iterator[str]:
        """Names a figure without its table, or a table without its figure or columns."""
        if (self.figure == 5) != (self.table is not None):
            given = f"--figure {self.figure} and {self.table or 'no table'}"
            yield f"--table must be given with --figure 5, and with no other, got {given}"
        if self.table is not None:
            yield from _table_faults(self.table, self.task, self.target)


@dataclass(frozen=True)
class MolarTableSettings(StudySettings):
    """MOLAR on your own table: a regression for each task, most of it shared.

    Prints the shared coefficients and where tasks differ from them, with
    intervals; draws the heterogeneity (Figure 1 of the MOLAR paper); and
    compares errors on held-out rows with those of simpler methods. --paper has
    MOLAR as published, and its comparison (App. J.2: --train 0.05 --validation
    0.05 --splits 100).
    """

    path: Path = argument(
        metavar="TABLE", help="A .csv or .xlsx file with a header, or an .npz file."
    )
    task: str = option(metavar="COLUMN", help="Each row's task (site, country).")
    target: str = option(metavar="COLUMN", help="The values to predict.")
    drop: tuple[str, ...] = option(
        (), metavar="COLUMN", help="A column that is not a feature; may be repeated."
    )
    family: str = option(
        "linear",
        metavar="NAME",
        among=("linear", "logistic", "poisson"),
        help="linear, logistic (target 0 or 1) or poisson.",
    )
    paper: bool = option(False, help="MOLAR as published, and the methods it was compared with.")
    soft: bool = option(False, help="With --paper: soft thresholding; default hard.")
    c: float = option(
        1.0,
        metavar="C",
        least=0,
        help="Scale of the threshold: of three standard deviations, or, with --paper, of the "
        "paper's, by which 0 shares nothing.",
    )
    level: float = option(0.95, metavar="P", help="Confidence level of the intervals.")
    intervals: str = option(
        "honest",
        metavar="KIND",
        among=("honest", "shared"),
        help="honest: they hold however far a task is from the others; or shared, with --paper: "
        "shorter, but they miss most coefficients that differ by about three standard errors.",
    )
    missing: str = option(
        "error",
        metavar="HOW",
        among=("error", "indicator", "complete", "impute"),
        help="error; indicator: 0, and a column that marks them; complete: rows without; or "
        "impute: multiple imputation within each task (methods are compared with indicators).",
    )
    robust: str = option(
        "none",
        metavar="KIND",
        among=("none", "HC0", "HC1", "HC2", "HC3"),
        help="Standard errors of tasks' own estimates: none (the model's), or HC0 to HC3.",
    )
    splits: int = option(10, least=0, help="Random splits to compare methods in; 0: none.")
    train: float = option(0.6, metavar="SHARE", help="Share of rows to learn from, in a split.")
    validation: float = option(0.2, metavar="SHARE", help="Share of rows to choose constants by.")
    seed: int = option(0, least=0, help="Seed of the splits.")

    def problems(self) -> Iterator[str]:
        """Names a file of another kind, and options that do not go together."""
        yield from _table_faults(self.path, self.task, self.target)
        if self.soft and not self.paper:
            yield "--soft needs --paper: adaptive MOLAR has no such choice"
        if self.intervals != "honest" and not self.paper:
            yield "--intervals shared needs --paper, since it judges by the paper's median"
        if not (self.paper or self.c > 0):
            yield f"--c must be above 0 without --paper, got {self.c:g}"
        if not 0 < self.level < 1:
            yield f"--level must be between 0 and 1, got {self.level:g}"
        shares = self.train, self.validation
        if not (min(shares) > 0 and sum(shares) < 1):
            yield (
                "--train and --validation must be above 0, and leave rows to be predicted, got "
                f"{self.train:g} and {self.validation:g}"
            )

    @property
    def detail(self) -> str:
        """The table's name."""
        return f"-{self.path.stem}"
