"""Report of an exchange of estimates: shared coefficients, and each site's gain by them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from engram.compare.figures import COLORS, panels
from engram.compare.plots import tick_label
from engram.compare.reports.base import reports
from engram.compare.reports.sites import MANY, draw_curve, first_rows, regret_table, show_sites
from engram.runs.run import Run
from engram.settings.errors import few_names
from engram.strategies.running.base import Row
from engram.tables.effects.meta_analysis import MetaAnalysis, meta_analysis
from engram.tables.effects.summary import RATIOS
from engram.tables.federation.molar import COLUMNS, REGRETS, Molar, MolarBandit
from engram.tables.intervals import Intervals
from engram.tables.studies.forest import draw_forest, effects_table


def draw_sites(record: Run, found: Row) -> dict[str, Figure]:
    """Draws sites' losses, and a forest plot of their estimates, as far as a run has them."""
    effects = effects_of(found, record.settings)
    plots = {"losses": draw_losses(found)} if found.get("loss-own") is not None else {}
    return plots | ({"forest": draw_forest(effects)} if effects else {})


@reports(Molar.plug_in, draw_sites)
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, coefficient_table, print_effects)


def print_effects(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Table | None:
    """Returns the table of fixed and random effects over sites; None without estimates."""
    effects = effects_of(found, settings)[:MANY]
    return effects_table(effects) if effects else None


def effects_of(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[MetaAnalysis]:
    """Returns the meta-analyses of a run's coefficients, but of those with fewer than two sites.

    Sites' own intervals are as they have sent them, if they have.
    """
    given, effects = found.get("estimates"), list[MetaAnalysis]()
    if not given or not given["sites"]:
        return effects
    coef, error = (np.array(given[key], dtype=float) for key in ("coef", "error"))
    error[np.isnan(error)] = np.inf
    freedom = np.array([np.inf if one is None else one for one in given["freedom"]])
    low, high = (np.array(given.get(end, coef), dtype=float) for end in ("low", "high"))
    method = settings["method"]
    ratio = RATIOS.get(settings.get(f"{method}.family", "hazards"), "")
    for k, name in enumerate(found["shared"]["names"]):
        if (np.isfinite(error[:, k]) & (error[:, k] > 0)).sum() > 1:
            one = meta_analysis(
                name,
                given["sites"],
                coef[:, k],
                error[:, k],
                freedom=freedom,
                level=settings[f"{method}.level"],
                ratio=ratio,
            )
            if "low" in given:
                one = one._replace(
                    sites=one.sites._replace(limits=Intervals(low[:, k], high[:, k]))
                )
            effects.append(one)
    return effects


def coefficient_table(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Table:
    """Returns the shared coefficients, with their intervals."""
    shared, level = found["shared"], settings[f"{Molar.name}.level"]
    title = f"Shared by {found['sites']} sites with {found['rows']:g} rows"
    headings = ["coefficient", f"{level:g} interval"]
    why, single, rows = shared["no-interval"], shared["one-site"], list[tuple[str, str, str]]()
    for name, coef, low, high in zip(
        *(shared[key] for key in ("names", "coef", "low", "high")), strict=True
    ):
        limits = "-" if low is None or high is None else f"{low:.4g} .. {high:.4g}"
        rows.append((name, f"{coef:.4g}{'*' if name in single else ''}", limits))
    reasons = {each: [name for name in why if why[name] == each] for each in why.values()}
    lines = [f"- {few_names(names)}: {reason}." for reason, names in reasons.items()]
    if single:
        lines.append("* One site's own estimate to the digit, as medians of few sites are.")
    if found.get("bounded"):
        lines.append(
            f"By max-weight, {few_names(found['bounded'])} counts less for others than its rows "
            "would; its own coefficients rest on all of them."
        )
    if found.get("unsettled"):
        lines.append(
            "The exchange has not converged: the last step moved a coefficient by "
            f"{found['unsettled']:.2g} standard errors."
        )
    return first_rows(title, ["column"], headings, rows, lines)


def draw_losses(found: Mapping[str, Any]) -> Figure:
    """Plots each site's held-out losses relative to that of its own estimate, in sorted order."""
    clients = found["clients"]
    own, shared, personal = (np.array(clients[column.name], dtype=float) for column in COLUMNS)
    figure, (axes,) = panels(1, size=(7.5, 4.5))
    own = np.where(own > 0, own, np.nan)  # no estimate, or no noise
    order = np.argsort(personal / own)
    places = np.arange(len(order))
    axes.axhline(1, color="gray", lw=1, label="its own estimate alone")
    axes.plot(places, (shared / own)[order], "s", color=COLORS[1], ms=4, label="shared")
    axes.plot(places, (personal / own)[order], "o", color=COLORS[0], ms=5, label="personal (MOLAR)")
    names = clients.get("names", clients["ids"])
    labels = [tick_label(names[i]) for i in order]
    axes.set_xticks(places, labels, fontsize=7, rotation=90, parse_math=False)
    axes.set(xlabel="site", ylabel="held-out loss over that of its own estimate", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.legend()
    return figure


def _draw_regret(record: Run, found: Row) -> dict[str, Figure]:
    del found
    rows = [row for row in record.rows() if REGRETS.name in row]
    if not rows:  # damaged, which has been warned of
        return {}
    first = record.settings[f"{MolarBandit.name}.first-batch"]
    turns = [first << (row["round"] - 1) for row in rows]
    labels = {"xlabel": "turn (a dot ends a batch)", "ylabel": REGRETS.metric.meaning}
    regrets = [row[REGRETS.name] for row in rows]
    return {REGRETS.name: draw_curve(turns, regrets, "o-", labels)}


@reports(MolarBandit.plug_in, _draw_regret)
def _show_regret(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, lambda found, settings: regret_table(found))
