"""Functions of ``import engram``: experiments on data in memory; runs as tables and models."""

from collections.abc import Callable
from functools import cached_property, wraps
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from engram.arguments import arguments, read_experiment
from engram.cli.console import in_html
from engram.cli.progress import Execute, Report, Start, interruptible, run_all, shows
from engram.client.hosts import Engine, Host, Opening, host_of
from engram.client.hosts.local import LocalHost, hosted_by
from engram.client.memory import RamStore
from engram.compare.reports.base import REPORTS, plots_of
from engram.core.checks import must
from engram.core.process_modes import named_here, own_modes
from engram.core.standardization import Units
from engram.core.types import Params
from engram.data.image_axes import say_once
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.source import Source
from engram.home.exporting import adapted_into, exported_into
from engram.home.learned import Learned, models_of
from engram.python_arguments import settings_of
from engram.runs import run as recorded
from engram.runs.run_places import begun, data_name, find_run, new_folder
from engram.scoring.score_columns import TUNED, selected_by
from engram.settings.errors import Refused, told_with
from engram.settings.experiment import FIRST, Experiment, by_key, lists_settings
from engram.settings.families import METHODS
from engram.simulations.engine import simulate as run_in_process

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from engram.data.lazy import RowNumbers
    from engram.data.readers.in_memory import Data

_log = getLogger("flwr.engram")

Opens = Callable[[Opening], Host]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _in_its_names(
    function: "Callable[Concatenate[Run, _P], _R]",
) -> "Callable[Concatenate[Run, _P], _R]":
    """Makes a method one that knows networks and functions as the call that made the run did."""

    @wraps(function)
    def call(run: "Run", /, *args: _P.args, **named: _P.kwargs) -> _R:
        with own_modes(run._named):
            return function(run, *args, **named)

    return call


class Run:
    """A run that was recorded in ``folder``, finished or not."""

    def __init__(
        self,
        folder: Path,
        source: Source | None = None,
        *,
        picked: bool = False,
        tuned: bool = False,
    ) -> None:
        self.folder, self._source, self._picked, self._tuned = folder, source, picked, tuned
        self._record = recorded.Run.open(folder)
        self._named = named_here()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_named": {}}  # they are another process's

    @property
    @_in_its_names
    def picked(self) -> Self:
        """The run with the models of the rounds that validation rows pick, in place of the last's.

        Its ``model``, ``personal_model(client)``, ``export(client)`` and ``adapt(rows)`` are of
        the round in which the models that serve clients are best on validation rows.
        """
        return type(self)(self.folder, self._source, picked=True, tuned=self._tuned)

    @property
    @_in_its_names
    def tuned(self) -> Self:
        """The run with clients' models after fine-tuning, in place of those that serve them.

        Its ``personal_model(client)`` and ``export(client)`` are those that ``-tuned`` scores are
        of. A mixture, or a model whose rows vote, cannot be fine-tuned, and is refused.
        """
        return type(self)(self.folder, self._source, picked=self._picked, tuned=True)

    def __repr__(self) -> str:
        state = "finished" if self._record.results is not None else "not finished"
        state += ", picked rounds" if self._picked else ""
        return f"Run({str(self.folder)!r}: {self._record.method.name}, {state})"

    @_in_its_names
    def __str__(self) -> str:
        """Returns a line about it, and its table; of a method without a network, its rounds."""
        text = REPORTS[self._record.method.plug_in].text
        tables = text(self._record) if text else ""
        return f"{self!r}\n{tables or self.metrics.to_string(max_rows=10)}"

    def _repr_html_(self) -> str:
        return in_html([repr(self)], self.metrics)

    @cached_property
    @_in_its_names
    def experiment(self) -> Experiment:
        """The run's settings.

        Raises:
            Refused: If it is about a network, a loss or another function that this process does
                not know by its name.
        """
        given = {} if self._source is None else {"dataset": self._source}
        return Experiment.from_config(self._record.settings | given)

    @property
    def results(self) -> dict[str, Any]:
        """The run's results, of ``results.json``.

        Raises:
            Refused: If it is not finished.
        """
        return self._record.finished

    @property
    def metrics(self) -> "pd.DataFrame":
        """A row for each round, and a column for each metric."""
        return _frame(self._record.rows() or {"round": []}).set_index("round")

    @property
    def clients(self) -> "pd.DataFrame":
        """A row for each client that was scored, by name or number, and a column for each score.

        Of a run that is ``picked`` they are those after the picked round, else after the last.
        Names that are all whole numbers are numbers in its index. Where methods train networks,
        the column ``unseen`` says which clients never train.
        """
        found = self._record.picked(TUNED if self._tuned else "") if self._picked else None
        columns = dict((found or self.results)["clients"])
        ids = columns.pop("ids", None)
        called = columns.pop("names", ids)
        if ids is not None and self._record.trains_network:
            columns["unseen"] = np.isin(ids, self.results.get("unseen", ()))
        numbers = [int(name) for name in called or () if str(name).isdecimal()]
        if [str(name) for name in called or ()] == list(map(str, numbers)):
            called = numbers
        return _frame(columns, called or None, "client")

    @property
    @_in_its_names
    def model(self) -> Params:
        """The arrays that all clients share after the last round, by name; see also ``picked``.

        Of a network of your own, these are its parameters and running statistics, as
        ``load_state_dict`` takes them. They take rows, and give outputs, in standardized units,
        where there are such; see ``units``.

        Raises:
            Refused: If clients share several networks.
        """
        return self.learned.shared

    @property
    @_in_its_names
    def units(self) -> Units:
        """Means and deviations of inputs and of targets, by which the network's are standardized.

        An exported model has them in it: it takes rows, and gives outputs, in your own units.
        """
        return self.learned.kind.units

    @cached_property
    @_in_its_names
    def learned(self) -> Learned:
        """The models behind ``personal_model``, as the platform has them."""
        pick = selected_by(TUNED if self._tuned else "") if self._picked else ""
        opened = models_of(self.experiment).learned
        return opened(self._record, self.experiment, pick, tuned=self._tuned)

    @_in_its_names
    def personal_model(self, client: int | str) -> Params:
        """Returns the model that serves a client, by name of its arrays.

        It is one that the client keeps, or the common one: as it is, with parameters that the
        client keeps, or after fine-tuning. If the method also looks at the client's rows, it is the
        network by which it does.

        Args:
            client: Its name, text or a number; without names, its number from 0.

        Raises:
            Refused: If there is no such client, or its memories are on nodes of their own.
        """
        return self.learned.arrays_of(self.learned.number(client))

    @_in_its_names
    def split(self, client: int | str) -> "dict[str, RowNumbers]":
        """Returns the numbers of a client's ``train``, ``validation`` and ``test`` rows, ascending.

        They count from 0 the client's rows ``x`` or, of test rows that are given, ``x_test``; of
        data that are not given client by client, the rows of all. See ``personal_model``.

        Raises:
            Refused: There is no such client, its rows are not here, or no network is trained.
        """
        return self.learned.split(self.learned.number(client))

    @_in_its_names
    def predict(self, client: int | str) -> "pd.DataFrame":
        """Returns predictions of a client's test rows by the model that serves it.

        The index has the rows' numbers in ``split``. Columns are the ``target``, and those of
        ``engram predict``: ``predicted`` and, of classes, ``probability CLASS``.

        Raises:
            Refused: As for ``split`` and ``personal_model``; or outputs are no table.
        """
        found = self.learned.predictions(self.learned.number(client))
        return _frame(found, self.split(client)["test"], "row")

    @_in_its_names
    def export(
        self,
        client: int | str | None = None,
        *,
        out: str | Path | None = None,
        format: str = "safetensors",  # noqa: A002 - what people call it
    ) -> Path:
        """Writes a model into a folder, with a card; see ``load_model``.

        Args:
            client: Whose model, as in ``personal_model``: the one that the method serves the
                client by, whatever it consists of. None: the common model.
            out: The folder, a new one; by default one in this folder, named for the client.
            format: ``safetensors`` or ``onnx``; or ``peft``, of the adapter of a ``peft`` model.

        Raises:
            Refused: If the run is not finished, or there is no such model, client or format.
        """
        return exported_into(self.learned, client, out, format).folder

    @_in_its_names
    def adapt(
        self,
        data: str | Path,
        *,
        out: str | Path | None = None,
        format: str = "safetensors",  # noqa: A002 - what people call it
    ) -> Path:
        """Writes a model for a client that never took part, made of a few rows of its own.

        It is made as for the clients of the setting ``unseen-clients``. Its card says how well it
        does on these rows by cross-validation, beside a model of these rows alone, and the common
        one. Of rows without targets, it is the common one.

        Args:
            data: A .csv, .xlsx or .npz file, or a folder of images or .npy files, with such rows as
                run's clients have.
            out: As for ``export``.
            format: As for ``export``.

        Raises:
            Refused: If the run is not finished, its method adapts to nobody, or the rows are others
                than its clients have.
        """
        return adapted_into(self.learned, data, out, format).folder

    @_in_its_names
    def plot(self, metric: str = "") -> "Figure":
        """Draws a metric against rounds, or a report's plot where no network is trained.

        Args:
            metric: Its name, by default the first; or the name of a report's picture.

        Raises:
            Refused: If there is nothing of that name, or the run that is reported is not finished.
        """
        if curve := REPORTS[self._record.method.plug_in].curve:
            return curve(self._record, metric)
        _ = self.results  # refused before it is finished
        if not (plots := plots_of(self._record)):
            raise Refused(f"there is no plot of {self.folder}: see engram show {self.folder}")
        name = metric or next(iter(plots))
        if name not in plots:
            raise Refused(must("metric", name, f"one of {', '.join(plots)}"))
        return plots[name]


def _frame(columns: Any, names: Any = None, name: str = "") -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415 - slow to import

    return pd.DataFrame(columns, index=None if names is None else pd.Index(names, name=name))


@lists_settings
@own_modes()
def simulate(
    data: "Data | None" = None,
    *,
    method: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    engine: Engine | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Runs an experiment in this process, on data in memory or on a data set by its name.

    Args:
        data: The clients' rows ``(x, y)``, in a list or by the clients' names; or ``(x, y)`` of
            all clients, whose rows the setting ``partition`` gives out. ``(x, y, x_test, y_test)``
            has test rows, too; from other rows, some are held out. In place of ``(x, y)`` may
            stand a ``torch.utils.data.Dataset`` of such pairs, which is read as rows are drawn and
            gives the same row each time. None: the data set that
            the setting ``dataset`` names.
        method: What to run, by default ``local-moml``; ``engram.methods()`` lists them.
        out: Folder of the run; by default a new one in ``runs/``.
        resume: Instead, a run to go on with, given the same data. Method, engine and settings are
            its own, but for those that are given: ``resume=folder, num_rounds=80``.
        engine: ``vectorized``, the default, or ``sequential``.
        progress: Whether to show progress, also in a notebook.
        **settings: Shared settings and the method's own, by name: ``num_rounds=50, eta=0.2``. The
            setting ``model`` may be a ``torch.nn.Module``, its class, or a function that makes one.
            ``loss``, ``augment``, ``schedule`` and ``optimizer`` may be
            functions, as ``engram.loss``, ``engram.augmentation``, ``engram.schedule`` and
            ``engram.optimizer`` take them; ``metrics`` a list of names, and of functions as
            ``engram.metric`` takes them.

    Returns:
        The run; its folder holds all results.

    Raises:
        Refused: If settings or data are impossible; nothing has been written.
        RunStopped: If the run diverged.
    """
    if resume is not None and out is not None:
        raise Refused("out and resume exclude each other: a run stays in its folder")
    say_once.cache_clear()
    given, wrong = arguments(engine=engine, out=out, resume=resume, progress=progress)
    if given.resume is None:
        chosen = FIRST if method is None else method
        experiment = told_with(wrong, lambda: read_experiment(settings_of(data, chosen, settings)))
        opens = _check(experiment, using := given.engine or "vectorized")
        name = f"{experiment.method}-{data_name(experiment)}"
        with new_folder(given.out, name) as folder:
            return _run_into(experiment, folder, using, progress, opens)
    folder = find_run(str(given.resume))
    own, before = begun(folder, method)
    if data is not None:
        del own["dataset"]
    whole = own | by_key(settings)
    experiment = told_with(wrong, lambda: read_experiment(settings_of(data, own["method"], whole)))
    recorded.Run.open(folder).check_resumable(experiment, engine=given.engine or before)
    opens = _check(experiment, using := given.engine or before)
    return _run_into(experiment, folder, using, progress, opens)


def _check(experiment: Experiment, engine: Engine) -> Opens:
    """Refuses settings and data that do not fit each other.

    Returns:
        Opens the host of a run on them, without loading the rows of a network's clients again.
    """
    host = host_of(Opening(experiment, RamStore(), engine=engine))
    if not isinstance(host, LocalHost):
        return host_of
    data = host.trainer.given
    return lambda opening: hosted_by(opening, data)


def _run_into(
    experiment: Experiment, folder: Path, engine: Engine, progress: bool, opens: Opens
) -> Run:
    if shows(progress):
        again = f"engram.simulate(..., resume={str(folder)!r})"
        with interruptible():
            run_all({folder: experiment}, executes(engine, opens), again)
    else:
        run_in_process(experiment, folder, engine=engine, opens=opens)
    return Run(folder, experiment.source)


def executes(engine: Engine, opens: Opens = host_of) -> Execute:
    """Returns a function that runs an experiment by an engine, on clients that ``opens`` opens."""

    def execute(experiment: Experiment, folder: Path, report: Report, start: Start) -> None:
        run_in_process(
            experiment, folder, engine=engine, on_round=report, on_start=start, opens=opens
        )

    return execute


def load_run(run: str | Path, data: "Data | None" = None) -> Run:
    """Opens a run: its folder, or its name in ``runs/``; warns if its data have changed since.

    Args:
        run: The run.
        data: The data that the run was given in memory, where clients' rows are needed, as for a
            model that is fine-tuned on them.

    Raises:
        Refused: If there is none, or it has learned from other data.
    """
    given, wrong = arguments(run=run)
    folder = told_with(wrong, lambda: find_run(str(given.run)))
    if data is None:
        opened = Run(folder)
        if why := opened._record.other_rows:
            _log.warning("%s", why)
        return opened
    dataset, source = begun(folder, None)[0]["dataset"], hold(arrays_of(data))
    if source != dataset:
        raise Refused(must("data", source, f"those of the run, {dataset}"))
    return Run(folder, source)


def methods() -> dict[str, str]:
    """Returns each method's meaning, by its name."""
    return {name: method.meaning for name, method in METHODS.items()}
