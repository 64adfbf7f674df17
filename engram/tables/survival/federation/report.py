"""Report of Cox's model between sites: hazard ratios with their intervals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from engram.cli.console import new_table
from engram.compare.reports.base import reports
from engram.compare.reports.sites import MANY, show_sites
from engram.tables.survival.federation.cox import Cox


@reports(Cox.plug_in, lambda _, row: {})
def _show(folder: Path, as_json: bool) -> None:
    show_sites(folder, as_json, hazard_table)


def hazard_table(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Table:
    """Returns the hazard ratios, with their intervals."""
    shared, level = found["shared"], settings[f"{Cox.name}.level"]
    title = f"Stratified by {found['sites']} sites with {found['events']:g} events"
    headings = ["coefficient", "hazard ratio", f"{level:g} interval"]
    table = new_table(["column"], headings, title=title, padding=(0, 1))
    parts = list(zip(*(shared[key] for key in ("names", "coef", "low", "high")), strict=True))
    for name, coef, low, high in parts[:MANY]:
        ratio, *ends = (f"{value:.4g}" for value in np.exp([coef, low, high]))
        table.add_row(name, f"{coef:.4g}", ratio, " .. ".join(ends))
    if len(parts) > MANY:
        table.add_row("...", f"{len(parts)} in all", "in results.json")
    lines = ["Approximate: sites' own estimates in one exchange."] * found["approximate"]
    lines += ["The exchanges have not converged: set cox.exchanges higher."] * (
        not found["settled"]
    )
    table.caption, table.caption_justify = "\n".join(lines) or None, "left"
    return table
