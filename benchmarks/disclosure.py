"""Rows that runs tell, by their settings: the table of ``docs/privacy.md``.

``python -m benchmarks.disclosure`` runs FedAvg on digits in halves with each of the settings, and
audits it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer
from rich.table import Table

import engram
from engram.cli.console import out

_SHARED: Final[dict[str, Any]] = {"method": "fedavg", "partition": "halves", "hidden": "64"}
_CLIPPED: Final = {"clip": 0.3}
_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "batches of 1, 1 step": {"batch_size": 1, "local_steps": 1, "num_rounds": 50},
    "batches of 4, 1 step": {"batch_size": 4, "local_steps": 1, "num_rounds": 50},
    "batches of 5, 5 steps": {},
    "the same, clip 0.3": _CLIPPED,
    "the same, local noise 1": _CLIPPED | {"privacy": "local", "noise_multiplier": 1.0},
    "the same, central noise 1": _CLIPPED | {"privacy": "central", "noise_multiplier": 1.0},
    "clip 0.3, secure aggregation": _CLIPPED | {"aggregation": "secure"},
    "a convolutional network": {"model": "cnn"},
    "FedPer": {"method": "fedper"},
    "LocalMOML": {"method": "local-moml"},
}


def main(
    federations: Annotated[int, typer.Option(help="Federations of each audit.")] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds, where settings do not say.")] = 50,
) -> None:
    """Prints the table."""
    table = Table("settings", "server", "members", "own model", "global model", "accuracy")
    for name, settings in _SETTINGS.items():
        with TemporaryDirectory() as folder:
            given = {"num_rounds": rounds} | _SHARED | settings
            run = engram.simulate(out=Path(folder) / "run", progress=False, **given)
            found = engram.audit(run, federations=federations, progress=False)
            members = max((seen.told for seen in found.seen if seen.by == "members"), default=0)
            # With secure aggregation it has the sum alone, which the merged model shows, too.
            server = max((seen.told for seen in found.seen if seen.by == "server"), default=members)
            told = [
                f"{100 * p.share:.1f} ({100 * p.low:.1f} to {100 * p.high:.1f})" if p else ""
                for p in (found.told.get(""), found.told.get("-common"))
            ]
            shares = f"{server:.0%}", f"{members:.0%}"
            table.add_row(name, *shares, *told, f"{100 * run.results['accuracy']:.1f}")
        out.print(f"{name}: done", soft_wrap=True)
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
