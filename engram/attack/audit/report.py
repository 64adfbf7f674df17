"""Audits of a run's privacy, and their results in words and in two tables."""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rich.table import Table

from engram.api import Run
from engram.arguments import arguments
from engram.attack.audit.members import members, training_clients
from engram.attack.audit.messages import Seen, messages
from engram.attack.membership import RATE, Power
from engram.cli.console import as_allowed
from engram.cli.progress import progress_lines
from engram.core.checks import must
from engram.core.process_modes import own_modes
from engram.home.run_models import LearnedNetworks
from engram.runs.run_places import begun
from engram.scoring.score_columns import COMMON
from engram.settings.errors import Refused, told_with
from engram.settings.files import replace_file

AUDIT: Final = "audit.json"
"""The result's file in a run's folder."""

_MODELS: Final = {"": "a client's own model", COMMON: "the common model"}


class Audit(NamedTuple):
    """Findings of the attacks."""

    seen: list[Seen]  # reconstructed rows, by who sees what
    told: dict[str, Power]  # power of membership inference, by the suffix of the models' columns
    federations: int  # federations that were trained for it

    @property
    def verdict(self) -> list[str]:
        """The findings in sentences."""
        return [*_on_rows(self.seen), *_on_members(self.told)]

    @property
    def as_json(self) -> dict[str, Any]:
        """The findings as values."""
        return {
            "verdict": self.verdict,
            "messages": [seen._asdict() for seen in self.seen],
            "members": {which or "served": p._asdict() for which, p in self.told.items()},
            "false-positives": RATE,
            "federations": self.federations,
        }


@own_modes()
def audit(run: Run, *, clients: int = 3, federations: int = 8, progress: bool = True) -> Audit:
    """Attacks the privacy of a run with its own settings, on its own clients' rows.

    Rows are reconstructed from messages of the first round and from the model that it leaves
    (``engram.attack.inversion``), and recognized by models that the settings make of random
    halves of the rows (``engram.attack.membership``). The result is kept in the run's folder,
    in ``audit.json``.

    Args:
        run: The run; its rows are in this process, or in its data set.
        clients: Number of messages to attack: those of the clients with the fewest rows.
        federations: Number of federations to train on half of the rows each; even, at least 4.
        progress: Whether to show it.

    Raises:
        Refused: The run trains no network, or its rows are too few, or elsewhere.
        RunStopped: A federation diverged on half of the rows.
    """
    _, wrong = arguments(progress=progress)
    _, engine = told_with(wrong, lambda: begun(run.folder, None))
    learned = run.learned
    if not isinstance(learned, LearnedNetworks):
        raise Refused(f"{learned.experiment.method} trains no network, which audits are of")
    if clients < 1:
        raise Refused(must("clients", clients, "1 or more"))
    rows = learned.data.train.rows
    fewest = sorted(training_clients(learned), key=lambda client: len(rows[client]))[:clients]
    with progress_lines("rounds", lambda: "nothing is kept", shown=progress) as begin:
        told = members(learned, federations, engine, begin)
        found = Audit(messages(learned, sorted(fewest)), told, federations)
    with as_allowed(run.folder):
        replace_file(run.folder / AUDIT, json.dumps(found.as_json).encode())
    return found


def _on_rows(seen: Sequence[Seen]) -> list[str]:
    found = []
    for by, whose in (("server", "a client's message"), ("members", "the merged model")):
        some = [each for each in seen if each.by == by]
        if not some and by == "server":
            found.append(
                "The server sees no message of a single client, and of all together what members "
                "see: aggregation is secure."
            )
        if not some:
            continue
        who = "The server" if by == "server" else "Whoever receives the model"
        if all(each.layer is None and each.gradient is None for each in some):
            found.append(f"{who}: no attack here reconstructs such rows; that is no proof.")
            continue
        worst = max(some, key=lambda each: (each.told - each.chance, each.told))
        if worst.told <= worst.chance:
            found.append(f"{who} reconstructs no row from {whose}, by the attacks here.")
            continue
        found.append(
            f"{who} reconstructs {worst.told:.0%} of the {worst.rows} rows of {whose} "
            f"({worst.client}; by chance {worst.chance:.0%})."
        )
    return found


def _on_members(told: dict[str, Power]) -> list[str]:
    found = []
    for which, p in told.items():
        share = f"{p.share:.1%} ({p.low:.1%} to {p.high:.1%})"
        if p.low > RATE:
            found.append(
                f"Whoever has {_MODELS[which]} recognizes {share} of the rows that it learned "
                f"from, at {RATE:.0%} false positives: {p.share / RATE:.1f} times guessing."
            )
        else:
            found.append(
                f"Whoever has {_MODELS[which]} recognizes no more rows than by guessing, as far "
                f"as is shown: {share} at {RATE:.0%} false positives."
            )
    return found


def tables(found: Audit) -> list[Table]:
    """Returns the findings as tables."""
    rows = Table("seen by", "of", "rows", "by first layer", "by gradient", "by chance")
    for each in found.seen:
        shares = (each.layer, each.gradient, each.chance)
        told = ["not tried" if share is None else f"{share:.0%}" for share in shares]
        rows.add_row(each.by, each.client, str(each.rows), *told)
    models = Table("who has", f"recognizes at {RATE:.0%} false", "95 % interval", "area")
    for which, p in found.told.items():
        interval = f"{p.low:.1%} to {p.high:.1%}"
        models.add_row(_MODELS[which], f"{p.share:.1%}", interval, f"{p.area:.3f}")
    return [rows, models]
