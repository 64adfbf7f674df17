"""A user's own table: MOLAR's coefficients, and which method predicts held-out rows best."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple, cast

import numpy as np

from engram.compare.figures import image_of
from engram.data.schema.declared import declare
from engram.data.tables.tables import Table, read_table
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from engram.simulations.job_pool import Pool, Tell
from engram.studies.study import Report
from engram.studies.summaries import in_words
from engram.tables.effects.meta_analysis import MetaAnalysis
from engram.tables.effects.summary import RATIOS
from engram.tables.families import FamilyName
from engram.tables.heterogeneity import REACH
from engram.tables.shrinkage import Option
from engram.tables.studies import coefficients, comparison, scores
from engram.tables.studies.coefficients import Coefficients, draw_heterogeneity, heterogeneity
from engram.tables.studies.contenders import adaptive, molar
from engram.tables.studies.forest import draw_forest, effects_by_site, effects_table
from engram.tables.studies.preparation import complete, independent, of_columns
from engram.tables.studies.settings import MolarTableSettings, table_source

_UNITS: Final = {"logistic": "log-odds", "poisson": "log of the mean"}
_TOLD: Final = [  # in results.json
    each.name for each in fields(MolarTableSettings) if each.name != "path"
]
_UNDETERMINED: Final = "columns that the rows of all tasks together do not determine"
_SHOWN: Final = 20  # most tasks lacking coefficients that are printed


class TableResults(NamedTuple):
    """The results of a table."""

    table: Table  # without missing values, and without the columns that are dropped
    dropped: list[str]  # columns that the rows do not determine, and what they depend on
    coefficients: Coefficients  # MOLAR's, fitted to all rows
    # Why the rows of some tasks do not determine all coefficients, by their labels.
    lacking: dict[Any, str]
    splits: list[dict[str, comparison.SplitScore]]  # each random split's scores, by method
    effects: list[MetaAnalysis]  # of tasks' own estimates, of each column that two determine
    missing: str  # how many rows have missing values, where they are left out or imputed


def work(settings: MolarTableSettings, pool: Pool) -> TableResults:
    """Fits MOLAR to all rows, and compares it with other methods on random splits of them."""
    s, family = settings, cast("FamilyName", settings.family)
    given = DataSettings.model_validate({"target_column": s.target, "task_column": s.task})
    columns = declare(given, drop=s.drop)
    table = read_table(table_source(s.path), columns, family=family)
    known = np.asarray(~np.isnan(table.x).any(axis=1))
    lacks_some = s.missing in ("complete", "impute") and not known.all()
    missing = f"{(~known).sum()} of {known.size} rows have missing values" if lacks_some else ""
    imputed, usable = lacks_some and s.missing == "impute", table
    if lacks_some:
        usable = table._replace(x=table.x[known], y=table.y[known], task=table.labels[known])
    marked = imputed or s.missing == "indicator"
    whole = complete(table if imputed else usable, family, indicators=marked)
    rows, dropped = independent(complete(usable, family, indicators=False) if imputed else whole)
    table = of_columns(table, rows.columns) if imputed else rows
    if dropped and not table.columns:
        raise DataError(f"{_UNDETERMINED}: {', '.join(dropped)}")
    reach = REACH * s.c
    option: Option = "soft" if s.soft else "hard"
    made = molar(family, option, s.c) if s.paper else adaptive(family, reach)
    made.set_params(robust=s.robust, missing="impute" if imputed else "error")
    model = comparison.fit_all(table, made)
    effects = effects_by_site(model, s.level, ratios=family in RATIOS)
    found = coefficients.coefficients(model, s.level, s.intervals)
    lacks = comparison.lacking(table, model, family)
    shares = comparison.Shares(s.train, s.validation)
    compared = table if s.paper else whole
    each = comparison.compare(compared, family, shares, splits=s.splits, seed=s.seed, paper=s.paper)
    splits = _told(each, pool.new_line("comparison", s.splits))
    return TableResults(table, dropped, found, lacks, splits, effects, missing)


def _told(splits: Iterable[dict[str, Any]], tell: Tell) -> list[dict[str, Any]]:
    done = []
    try:
        for split in splits:
            done.append(split)
            tell(len(done), "")
    except DataError as error:
        raise DataError(f"{error}; --splits 0 does without the comparison") from error
    return done


def report(settings: MolarTableSettings, found: TableResults) -> Report:
    """Makes tables and plots of the coefficients, and of the comparison if there is one."""
    s, family = settings, cast("FamilyName", settings.family)
    of, shares = found.coefficients, comparison.Shares(settings.train, settings.validation)
    rows, columns = found.table.x.shape
    shown = [
        f"{s.path}: {rows} rows of {len(of.tasks)} tasks, {columns} columns\n",
        coefficients.shared_table(of),
        *coefficients.task_table(of),
        *([effects_table(found.effects)] if found.effects else []),
    ]
    values = heterogeneity(of, np.nanstd(found.table.x, axis=0))
    unit = _UNITS.get(family, s.target)
    files = {
        "coefficients.csv": coefficients.frame(of).to_csv(index=False).encode(),
        "heterogeneity.png": draw_heterogeneity(values, of, unit),
    }
    if found.effects:
        files["forest.png"] = image_of(draw_forest(found.effects))
    compared = scores.comparison(found.splits, shares) if found.splits else []
    if compared:
        shown += [
            f"\n{scores.caption(compared, family, shares, paper=s.paper)}",
            scores.comparison_table(compared, paper=s.paper),
            *scores.failures(compared),
            *scores.qualities_table(compared),
            in_words(compared),
        ]
    results = {
        "table": str(s.path),
        "settings": {name: getattr(s, name) for name in _TOLD},
        "rows": rows,
        "shared": coefficients.shared_rows(of),
        "tasks": coefficients.frame(of).astype(object).to_dict("records"),
        "lacking": found.lacking,
        "dropped": found.dropped,
        "comparison": compared,
    }
    done = {"complete": "are left out", "impute": "are completed 20 times, by multiple imputation"}
    notes = [f"{found.missing}: they {done[s.missing]}"] if found.missing else []
    notes += [f"dropped {_UNDETERMINED}: {', '.join(found.dropped)}"] if found.dropped else []
    return Report(shown, results, files, [*notes, *_lacking_lines(found.lacking)])


def _lacking_lines(lacks: Mapping[Any, str]) -> list[str]:
    lines = [
        f"task {label!r}: {reason}; it takes the undetermined coefficients from the others"
        for label, reason in list(lacks.items())[:_SHOWN]
    ]
    if len(lacks) > _SHOWN:
        lines.append(f"{len(lacks)} such tasks in all; results.json names them")
    return lines
