"""Report of Cox's model between sites: hazard ratios with their intervals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from engram.compare.reports.base import reports
from engram.compare.reports.sites import first_rows, show_sites
from engram.settings.errors import one_line
from engram.tables.effects.summary import shown_p
from engram.tables.federation.report import draw_sites, effects_of, print_effects
from engram.tables.survival.federation.cox import Cox


@reports(Cox.plug_in, draw_sites)
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, hazard_table, site_table, print_effects)


def site_table(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Table | None:
    """Returns the sites' own hazard ratios, with intervals, and marks of sites that differ."""
    if not (effects := effects_of(found, settings)):
        return None
    title, headings = "Sites' own hazard ratios", ["hazard ratio", "interval", "differs"]
    differs = {(one["column"], one["site"]): one["p_value"] for one in found["differences"]}
    each = ((one.name, zip(one.sites.names, *one.sites.shown, strict=True)) for one in effects)
    rows = []
    for name, site, ratio, low, high in ((name, *row) for name, lines in each for row in lines):
        mark = f"p {shown_p(differs[name, site])}" if (name, site) in differs else ""
        rows.append((name, one_line(site), f"{ratio:.4g}", f"{low:.4g} .. {high:.4g}", mark))
    return first_rows(title, ["column", "site"], headings, rows)


def hazard_table(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Table:
    """Returns the hazard ratios, with their intervals."""
    shared, level = found["shared"], settings[f"{Cox.name}.level"]
    title = f"Stratified by {found['sites']} sites with {found['events']:g} events"
    headings = ["coefficient", "hazard ratio", f"{level:g} interval"]
    hull = found.get("all-but-one", [])
    headings += ["all sites but one at most"] * bool(hull)
    given, rows = [shared[key] for key in ("names", "coef", "low", "high")], []
    for name, coef, *limits in zip(*given, *np.array(hull, dtype=float), strict=True):
        ratio, *ends = (f"{value:.4g}" for value in np.exp([coef, *limits]))
        each = (" .. ".join(ends[k : k + 2]) for k in range(0, len(ends), 2))
        rows.append((name, f"{coef:.4g}", ratio, *each))
    lines = ["Approximate: sites' own estimates in one exchange."] * found["approximate"]
    if not found["settled"]:
        lines.append("The exchanges have not converged: set cox.exchanges higher.")
    return first_rows(title, ["column"], headings, rows, lines)
