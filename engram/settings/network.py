"""Settings of the methods that train networks, generated from the index of their files."""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Set
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, dataclass_transform

from pydantic import Field, create_model

from engram.core.checks import Fault, clash, must, require
from engram.guards.facts import ALWAYS, Fact
from engram.networks.optimizers import OPTIMIZERS
from engram.scoring.metrics import INTEGRATED_BRIER, METRICS, Metric, named
from engram.scoring.score_columns import COMMON, ELSEWHERE, VALIDATION, Column, columns_of
from engram.scoring.survival_losses import COX, PAIRED
from engram.scoring.tasks import SURVIVAL, TASKS, task_of
from engram.settings.base import METHODS, Method, SharedSettings, check_name, check_setting
from engram.settings.base import method as registered
from engram.settings.conflicts import unfit
from engram.settings.fields import Float, Int, key_of, searched
from engram.settings.plugins import MOVING

if TYPE_CHECKING:
    from engram.core.settings import Part

_C = TypeVar("_C", bound=type)
_TYPES: Final[dict[str, Any]] = {"float": Float, "int": Int, "bool": bool}
_LIMITS: Final = ("gt", "ge", "lt", "le")


class NetworkMethod(Method):
    """A method in which clients train networks by local steps.

    Attributes:
        reference: Whether every comparison includes it, as a baseline.
        personal: The part of the network that each client keeps, unless ``personal`` or ``share``
            say otherwise.
        tasks: Names of the tasks that it can learn; empty for all.
        module: The module of the method.
        each: Whether its server sees every update, so that no mean is there to be made private or
            robust.
        steps: Whether its server has a step of its own, so that ``server-step`` must be replace.
        phases: Number of phases in a round, which needs at least as many steps.
        tuned: Whether the served model of a client that has trained is fine-tuned.
        gradients: Whether clients see rows by one gradient a step, and in no other way.
        faults: Whether it checks combinations of its settings.
    """

    plug_in = "local"
    trains_network = True
    reference: ClassVar[bool] = False
    personal: ClassVar["Part"] = ""
    tasks: ClassVar[tuple[str, ...]] = ()
    module: ClassVar[str] = ""
    each: ClassVar[bool] = False
    steps: ClassVar[bool] = False
    phases: ClassVar[int] = 1
    tuned: ClassVar[bool] = False
    gradients: ClassVar[bool] = False
    faults: ClassVar[bool] = False

    @property
    def settings(self) -> Any:
        """The settings as an instance of the method's dataclass.

        Raises:
            ValueError: If they are impossible together.
        """
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return self._science(**given)

    @property
    def _science(self) -> Any:
        from engram.core.settings import METHODS as KNOWN

        importlib.import_module(self.module)
        return KNOWN[self.name]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.module, self.name, self.model_dump())

    @property
    def facts(self) -> Set[Fact]:
        """The facts that hold of its rounds before any protection acts."""
        own = {
            Fact.MEAN: not self.each,
            Fact.NO_STEP: not (self.steps or self.each),
            Fact.GRADIENTS: self.gradients,
        }
        return ALWAYS - {fact for fact, holds in own.items() if not holds}

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns the metrics of scores: the chosen ones, and then the loss."""
        task = task_of(shared.task, shared.loss)
        return [*named((shared.metrics or task.metrics).split(",")), task.metric]

    def columns(self, shared: SharedSettings, models: Iterable[str] = ()) -> list[Column]:
        """Returns the columns of scores: each metric of each model, on test and validation rows.

        ``models`` are suffixes of models that are scored, too: ``COMMON``, ``TUNED``.
        """
        suffixes = ["", *models]
        found = columns_of(self.metrics(shared), dict.fromkeys(suffixes, False))
        if shared.validates:
            found += [column._replace(name=VALIDATION + column.name) for column in found]
        for which in suffixes if shared.elsewhere else ():
            lacking = {} if which == COMMON else {which + ELSEWHERE: True}
            found += columns_of(self.metrics(shared), lacking)
        return found

    @classmethod
    def step_sizes(cls) -> list[str]:
        """Returns the keys of the method's step sizes."""
        described = ((name, field.description or "") for name, field in cls.model_fields.items())
        return [f"{cls.name}.{key_of(name)}" for name, text in described if "step size" in text]

    @property
    def rows_needed(self) -> dict[str, int]:
        """Minimum number of a client's training rows: those of its initial batch."""
        name = "initial_batch_size"
        return {f"{self.name}.{key_of(name)}": getattr(self, name)} if hasattr(self, name) else {}

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the faults of settings that are impossible together."""
        if shared.num_classes == 1:
            yield clash("num-classes", 1, "0, or at least 2")
        yield from self.unscored(shared)
        yield from _impossible_cohorts(shared)
        if shared.local_epochs and shared.order == "stream":
            yield clash("local-epochs", shared.local_epochs, "0 where order is stream", "order")
        users = OPTIMIZERS.get(shared.optimizer)
        stateless = not users.remembers if users else shared.optimizer == "sgd"
        if stateless and shared.optimizer_state == "kept":
            expected = f"fresh where optimizer is {shared.optimizer}, which has none"
            yield clash("optimizer-state", "kept", expected, "optimizer")
        if shared.eta_by and "eta" not in type(self).model_fields:
            expected = f"empty for {self.name}, which has no eta"
            yield clash("eta-by", shared.eta_by, expected)
        if self.faults and self.model_dump(exclude_defaults=True):  # else torch is not needed
            yield from self._science.faults(self)
        yield from self._unsuitable(shared)
        yield from shared.attack_problems()
        yield from _impossible_times(shared)
        yield from unfit(shared, self)
        yield from _impossible_text(shared)
        yield from _metrics_that_do_not_fit(shared)
        yield from _impossible_survival(shared)

    def _unsuitable(self, shared: SharedSettings) -> Iterator[Fault]:
        if self.tasks and shared.task not in self.tasks:
            yield clash("task", shared.task, f"{' or '.join(self.tasks)} for {self.name}")
        if not shared.local_epochs and shared.local_steps < self.phases:
            expected = f"at least {self.phases} for {self.name} where local-epochs is 0"
            yield clash("local-steps", shared.local_steps, expected, "local-epochs")


@dataclass_transform(frozen_default=True)
def method(name: str, *, source: str = "", **about: Any) -> Callable[[_C], _C]:
    """Registers a class as a method of your own, for ``method=NAME`` and ``engram run NAME``.

    The class is made a frozen dataclass: its annotated fields are the method's settings, and its
    ``build(context)`` returns the method, an ``engram.core.Method``.

    Args:
        name: Name of the method: small letters, digits and hyphens.
        source: The paper that has its equations.
        about: As for ``engram.core.settings.method``.

    Raises:
        ValueError: The name or a setting is impossible, or the class builds no method.
    """
    if not isinstance(name, str):
        expected = f'a text, as in @engram.method("mine"); {MOVING}'
        raise ValueError(must("name of a method", name, expected))

    def register(cls: _C) -> _C:
        from engram.core.settings import METHODS as KNOWN
        from engram.core.settings import method as science
        from engram.methods.entries import entry_of

        check_name(name)
        other, same = getattr(METHODS.get(name), "module", name), KNOWN.get(name, cls)
        ours = (other, same.__qualname__) == (cls.__module__, cls.__qualname__)
        require(name not in METHODS or ours, "name", name, "a name that no other method has")
        built = callable(getattr(cls, "build", None))
        expected = f"a class with build(context) -> engram.core.Method; {MOVING}"
        require(built, f"method {name}", cls.__name__, expected)
        for key in vars(cls).get("__annotations__", {}):
            check_setting(name, key, has_default=hasattr(cls, key))
        made_of(entry_of(science(name, source=source, **about)(cls)))
        return cls

    return register


def made_of(entry: dict[str, Any]) -> type[NetworkMethod]:
    """Generates a method's settings class from its entry in the index, and registers it."""
    fields: dict[str, Any] = {}
    for name, field in entry["fields"].items():
        kind = Literal[tuple(field["choices"])] if "choices" in field else _TYPES.get(field["type"])
        expected = "float, int, bool or a Literal of texts"
        require(kind is not None, f"type of {entry['name']}.{name}", field["type"], expected)
        low, high, log = field.get("search", (0, 0, False))
        limits = {key: field[key] for key in _LIMITS if key in field}
        more = searched(low, high, log=log) if "search" in field else None
        described = Field(
            field["default"], description=field["meaning"], json_schema_extra=more, **limits
        )
        fields[name] = kind, described
    made: Any = create_model(
        entry["name"],
        __base__=NetworkMethod,
        __module__=__name__,
        __doc__=entry["meaning"],
        **fields,
    )
    for fact in ("name", "meaning", "source", "compared", "reference", "personal"):
        setattr(made, fact, entry[fact])
    for fact in ("module", "each", "steps", "phases", "tuned", "gradients", "faults"):
        setattr(made, fact, entry[fact])
    made.tasks = tuple(entry["tasks"])
    METHODS.pop(entry["name"], None)
    found: type[NetworkMethod] = registered(made)
    return found


def _again(module: str, name: str, settings: dict[str, Any]) -> Method:
    """Restores pickled settings; imports the method's module if it is unknown."""
    if name not in METHODS:
        importlib.import_module(module)
    return METHODS[name](**settings)


def _impossible_cohorts(shared: SharedSettings) -> Iterator[Fault]:
    asked = shared.clients_per_round
    unseen, seen = shared.unseen_clients, shared.num_clients - shared.unseen_clients
    if unseen and seen < 1:
        below = f"below num-clients = {shared.num_clients}"
        yield clash("unseen-clients", unseen, below, "num-clients")
    elif asked > seen:
        but = f" - unseen-clients = {seen}" if unseen else f" = {seen}"
        yield clash("clients-per-round", asked, f"at most num-clients{but}", "num-clients")
    if (named := len(shared.unseen_names)) not in (0, unseen):
        yield clash("unseen-clients", unseen, f"that of the clients in unseen, {named}", "unseen")
    if shared.patience and not shared.validates:
        expected = "0 without validation rows: protocol few-shot, or validation-fraction 0"
        yield clash("patience", shared.patience, expected, "protocol", "validation-fraction")
    if asked % shared.shards:
        divisor = f"a divisor of clients-per-round = {asked}"
        yield clash("shards", shared.shards, divisor, "clients-per-round")
    if shared.min_clients > asked:
        most = f"at most clients-per-round = {asked}"
        yield clash("min-clients", shared.min_clients, most, "clients-per-round")


def _impossible_times(shared: SharedSettings) -> Iterator[Fault]:
    yield from shared.time_problems()
    asked, seen = shared.clients_per_round, shared.num_clients - shared.unseen_clients
    if (more := shared.over_selection) and shared.asked(asked) > seen:
        expected = f"at most what makes {seen} clients of clients-per-round = {asked}"
        yield clash("over-selection", more, expected, "clients-per-round", "num-clients")
    if more and shared.shards > 1:
        yield clash("over-selection", more, "0 where shards is above 1", "shards")
    if shared.clock and shared.participation:
        expected = "empty where participation is another run's"
        yield clash("clock", shared.clock, expected, "participation")
    if (size := shared.buffer_size) > asked:
        most = f"at most clients-per-round = {asked}, which are at work at a time"
        yield clash("buffer-size", size, most, "clients-per-round")
    if size and shared.min_clients > size:
        most = f"at most buffer-size = {size}"
        yield clash("min-clients", shared.min_clients, most, "buffer-size")


def _impossible_text(shared: SharedSettings) -> Iterator[Fault]:
    text, source = shared.text, shared.source
    if text is None:
        return
    if shared.input_columns not in ("", text.name):
        expected = f"empty beside the text {text.name}, which is the only input"
        yield clash("input-columns", shared.input_columns, expected, "schema")
    if not (source.has_columns or source.is_given):
        tables = "csv:PATH, parquet:PATH, arrow:PATH or hf:NAME, or data frames, for texts"
        yield clash("dataset", source, tables, "schema")
    if shared.task == "next-token":
        yield clash("task", shared.task, "another for a column of texts", "schema")
    if shared.missing == "median":
        expected = "refuse, or indicator (an empty text) for a column of texts"
        yield clash("missing", shared.missing, expected, "schema")
    if shared.privacy != "none" and text.vocabulary_file is None:
        expected = (
            f"a file where privacy is {shared.privacy}: a vocabulary that is fitted tells of rows "
            "without noise"
        )
        yield clash(f"columns.{text.name}.tokenizer", text.tokenizer, expected, "privacy", "schema")


def _impossible_survival(shared: SharedSettings) -> Iterator[Fault]:
    loss, hazards = shared.loss, shared.task == SURVIVAL.name and shared.loss != COX
    own = hazards and loss not in ("", *PAIRED)  # a user's may take times as they are
    if bool(shared.horizon) != hazards and not own:
        wanted = "above 0, the time up to which hazards are predicted," if hazards else "0"
        expected = (
            f"{wanted} for task {shared.task} {'with' if loss == COX else 'without'} loss {COX}"
        )
        yield clash("horizon", shared.horizon, expected, "task", "loss")


def _metrics_that_do_not_fit(shared: SharedSettings) -> Iterator[Fault]:
    kind = TASKS[shared.task].targets
    fit = [name for name, metric in METRICS.items() if kind in (metric.targets or (kind,))]
    if not shared.horizon:  # without which there are no curves
        fit = [name for name in fit if name != INTEGRATED_BRIER]
    unfit = [name for name in shared.metrics.split(",") if name and name not in fit]
    if unfit:
        expected = f"some of {', '.join(fit)} for task {shared.task}"
        others = ("task", "horizon") if INTEGRATED_BRIER in unfit else ("task",)
        yield clash("metrics", ",".join(unfit), expected, *others)


for _entry in json.loads(files("engram").joinpath("methods/index.json").read_bytes()).values():
    made_of(_entry)
