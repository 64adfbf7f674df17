"""What exchanges of estimates found: shared coefficients, and who gains by them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from server.record import RunRecord
from server.tables import in_words
from simulations.console import err, out

__all__ = ["coefficient_table", "draw_losses", "draw_regret", "regret_table", "show_exchange"]

_MANY = 60  # coefficients that a table on the screen shows


def show_exchange(record: RunRecord, as_json: bool) -> None:
    """Draws the plot, and prints the table and where everything is."""
    found = record.results
    if found is None:
        err.print(f"{record.folder}: not finished; go on with --resume")
        return
    if "regret" in found:
        out.print(regret_table(found))
    else:
        out.print(coefficient_table(found, record.config["settings"].get("molar.level")))
    for kind, clients in (("left out", found["left-out"]), ("lacks", found.get("lacking", {}))):
        for client, reason in clients.items():
            err.print(f"client {client} {kind}: {reason}", soft_wrap=True)
    out.print(in_words(found), soft_wrap=True)
    files = ["results.json", "metrics.jsonl"]
    if "regret" in found and record.rows():  # else they are damaged, and it has been said
        draw_regret(record, record.folder / "regret.png")
        files.insert(0, "regret.png")
    elif found.get("scored"):
        draw_losses(found, record.folder / "losses.png")
        files.insert(0, "losses.png")
    out.print(f"recorded in {record.folder}: {', '.join(files)}", soft_wrap=True)
    if as_json:
        print(json.dumps({"run": str(record.folder), **found}))


def coefficient_table(found: Mapping[str, Any], level: float) -> Table:
    """Returns the shared coefficients, with their intervals."""
    shared = found["shared"]
    title = f"Shared by {found['sites']} sites with {found['rows']:g} rows"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("column")
    for heading in ("coefficient", f"{level:g} interval"):
        table.add_column(heading, justify="right")
    parts = list(zip(shared["names"], shared["coef"], shared["low"], shared["high"], strict=True))
    for name, coef, low, high in parts[:_MANY]:
        limits = "-" if low is None or high is None else f"{low:.4g} .. {high:.4g}"
        table.add_row(name, f"{coef:.4g}", limits)
    if len(parts) > _MANY:
        table.add_row("...", f"{len(parts)} in all", "in results.json")
    return table


def regret_table(found: Mapping[str, Any]) -> Table:
    """Returns what each site's turns came to."""
    batches = "" if found["turns"] == found["rounds"] else f" in {found['rounds']} batches"
    title = f"{found['sites']} sites, {found['turns']} turns{batches}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    told = "turns told of" if "told" in found else "activated in"
    for heading in ("site", told, "reward", "regret"):
        table.add_column(heading, justify="right")
    columns = [found["clients"][name] for name in ("turns", "reward", "regret")]
    for client, (turns, reward, regret) in enumerate(zip(*columns, strict=True)):
        if client < _MANY:
            table.add_row(str(client), f"{turns:.0f}", f"{reward:.4g}", f"{regret:.4g}")
    if len(columns[0]) > _MANY:
        table.add_row("...", f"{len(columns[0])} sites", "in", "results.json")
    return table


def draw_regret(record: RunRecord, path: Path) -> None:
    """Draws cumulative regret against turns: of all, as far as sites have told; or their mean."""
    first = record.config["settings"].get("molar-bandit.first-batch", 1)
    rows = record.rows()
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    regret = [0, *(row["regret"] for row in rows)]
    if "told" in rows[0]:
        axes.plot([0, *(row["told"] for row in rows)], regret)
        axes.set(xlabel="turns that clients have told of", ylabel="cumulative regret")
    else:
        axes.plot([0, *(first << (row["round"] - 1) for row in rows)], regret, "o-", ms=4)
        axes.set(xlabel="turn (a dot ends a batch)", ylabel="cumulative regret, mean over sites")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def draw_losses(found: Mapping[str, Any], path: Path) -> None:
    """Draws each site's held-out loss over that of its own estimate, against its rows."""
    clients = found["clients"]
    own, shared, personal = (
        np.array(clients[name], dtype=float) for name in ("own", "shared", "personal")
    )
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    own = np.where(own > 0, own, np.nan)  # of a site without an estimate, or without noise
    order = np.argsort(personal / own)
    colors = mpl.color_sequences["tab10"]
    places = np.arange(len(order))
    axes.axhline(1, color="gray", lw=1, label="its own estimate alone")
    axes.plot(places, (shared / own)[order], "s", color=colors[1], ms=4, label="shared")
    axes.plot(places, (personal / own)[order], "o", color=colors[0], ms=5, label="personal (MOLAR)")
    axes.set_xticks(places, [str(clients["ids"][i]) for i in order], fontsize=7, rotation=90)
    axes.set(
        xlabel="site",
        ylabel="held-out loss over that of its own estimate",
        yscale="log",
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
