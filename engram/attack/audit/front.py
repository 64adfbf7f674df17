"""Audits from Python: who could reconstruct, or recognize, the rows of a run?"""

from engram.api import Run
from engram.attack.audit.members import Begin
from engram.attack.audit.report import Audit, audited
from engram.cli.arguments import arguments
from engram.cli.options import as_allowed, begun
from engram.cli.progress import progress_lines
from engram.core.process_modes import own_modes
from engram.settings.errors import told_with


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

    def whole(begin: Begin) -> Audit:
        return audited(run.learned, clients, federations, engine, begin)

    if not progress:
        return whole(lambda title, total: lambda done, found: None)
    with as_allowed(run.folder), progress_lines("rounds", lambda: "nothing is kept") as begin:
        return whole(begin)
