"""Base classes of methods' settings."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field

from engram.core.checks import Fault, clash, must, require
from engram.data.source import Source
from engram.guards.facts import ALWAYS, Fact
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import LARGEST, Column
from engram.settings.data import DataSettings
from engram.settings.fields import Int, Settings, nearest
from engram.settings.model_and_evaluation import EvaluationSettings, ModelSettings
from engram.settings.protection import AttackSettings, CompressionSettings, ProtectionSettings
from engram.settings.run import Folders, MachineSettings, RunSettings
from engram.settings.training import TimeSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = (
    *(DataSettings, ModelSettings, RunSettings, TrainingSettings, TimeSettings),
    *(CompressionSettings, ProtectionSettings, AttackSettings, EvaluationSettings, MachineSettings),
)
"""The groups, in the order shown."""


class SharedSettings(
    MachineSettings,
    EvaluationSettings,
    AttackSettings,
    ProtectionSettings,
    CompressionSettings,
    TimeSettings,
    TrainingSettings,
    RunSettings,
    ModelSettings,
    DataSettings,
):
    """All groups in one. Code that needs one group takes that group's class as its argument."""


_READ_BY_ALL = DataSettings, RunSettings, ProtectionSettings, MachineSettings
NO_NETWORK = frozenset(
    {
        *(key for group in GROUPS if group not in _READ_BY_ALL for key in group.model_fields),
        *("num_classes", "partition", "rows_per_class", "test_rows_per_class", "dirichlet_alpha"),
        *("classes_per_client", "merge", "num_malicious", "max_norm", "bucket_size", "clip"),
        *("privacy", "missing", "images", "standardize"),
        *("noise_multiplier", "epsilon", "clip_quantile", "delta", "server_step"),
        *("aggregation", "secure_threshold", "guards"),
    }
)
"""Shared settings of those who train networks on rows of classes."""


class Method(Settings):
    """A method and its settings: each field of a subclass is a setting of the method.

    In files and on command lines it is ``METHOD.key``, so that no key has two meanings. Methods of
    a family share a host, a strategy and a report, which are registered under the family's name.

    Attributes:
        name: Its name for users.
        plug_in: Its family: the key of its plug-ins in ``engram.client.hosts``, ``strategies`` and
            ``engram.compare.reports``.
        meaning: Description in a few words.
        source: The paper that has its equations.
        tables: Whether clients hold tables, whose contents an error message may quote.
        unread: Shared settings that it does not read; giving one is an error.
        decisive: Shared settings that affect its numbers, and no other method's.
        compared: Whether comparisons include it by default.
        trains_network: Whether clients train networks by local steps.
        turns: Whether privacy is of a bandit's turns, of which each round has its own.
        survival: Whether it predicts times of events, which the schema's roles name.
        fits_all_rows: Whether it may hold out none.
        remembered: The numbers of each column that a client remembers; empty if it has others.
    """

    name: ClassVar[str]
    plug_in: ClassVar[str]
    meaning: ClassVar[str] = ""
    source: ClassVar[str] = ""
    tables: ClassVar[bool] = False
    unread: ClassVar[frozenset[str]] = frozenset()
    decisive: ClassVar[frozenset[str]] = frozenset()
    compared: ClassVar[bool] = False
    trains_network: ClassVar[bool] = False
    turns: ClassVar[bool] = False
    survival: ClassVar[bool] = False
    fits_all_rows: ClassVar[bool] = False
    remembered: ClassVar[tuple[str, ...]] = ()

    def sources(self, shared: SharedSettings) -> list[Source]:
        """Returns the data sets that ``dataset`` names."""
        return [shared.source]

    def holds_rows(self, shared: SharedSettings) -> bool:
        """Returns whether clients hold rows before the first round."""
        del shared
        return True

    def rounds(self, shared: SharedSettings) -> int:
        """Returns the number of rounds of a run."""
        return shared.num_rounds

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns the metrics that clients are scored by, the main one first."""
        del shared
        return []

    def columns(self, shared: SharedSettings, models: Iterable[str] = ()) -> list[Column]:
        """Returns the columns of a network's scores; none of other models."""
        del shared, models
        return []

    def on_a_node(self) -> Self:
        """Returns the method with the limits that a node enforces against its server."""
        return self

    @property
    def facts(self) -> Set[Fact]:
        """The facts that hold of its rounds before any protection acts."""
        return ALWAYS

    @property
    def asks(self) -> int:
        """Most messages of a round by which a client is asked to train."""
        return 1

    @property
    def rows_needed(self) -> dict[str, int]:
        """Minimum numbers of a client's training rows, by the setting that requires them."""
        return {}

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the faults of settings that depend on each other.

        Faults that involve a setting which is impossible by itself are suppressed.
        """
        if shared.min_clients > shared.num_clients:
            most = f"at most num-clients = {shared.num_clients}"
            yield clash("min-clients", shared.min_clients, most, "num-clients")
        yield from self.unscored(shared)

    def unscored(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the fault that no rows are held out, unless the method fits all."""
        if not (shared.test_fraction or self.fits_all_rows):
            yield clash("test-fraction", 0, f"above 0 for {self.name}, which is scored")

    def without_indicators(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the fault that missing values have indicators, for methods of coefficients."""
        if shared.missing == "indicator":
            yield clash("missing", shared.missing, f"refuse or median for {self.name}")


METHODS: dict[str, type[Method]] = {}
"""Every method, by its name; the first is the default."""

_T = TypeVar("_T")
_M = TypeVar("_M", bound=type[Method])


def method(made: _M) -> _M:
    """Registers a method under its name; use it as the decorator of its class.

    Without ``meaning``, the first line of the docstring is the method's meaning.

    Raises:
        ValueError: The name is taken, or cannot stand in ``NAME.eta``; or a field has no default,
            or the name of a shared setting.
    """
    cls: type[Method] = made
    name = str(getattr(cls, "name", ""))
    check_name(name)
    other = METHODS.get(name, cls)
    same = (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)
    require(same, "name", name, "a name that no other method has")
    for key, field in cls.model_fields.items():
        check_setting(name, key, has_default=not field.is_required())
    if "meaning" not in vars(cls) and cls.__doc__:
        cls.meaning = cls.__doc__.strip().partition("\n")[0].rstrip(".")
    METHODS[name] = cls
    return made


def check_name(name: str) -> None:
    """Raises ``ValueError`` unless a name can stand before a setting, as ``NAME.eta``."""
    word = re.fullmatch(r"[a-z][a-z0-9-]*", name, re.ASCII)
    require(bool(word), "name", name, "small letters, digits and hyphens")


def check_setting(name: str, key: str, *, has_default: bool) -> None:
    """Raises ``ValueError`` unless a method can have a setting of this key."""
    expected = "one with a default, and not the name of a setting that all methods have"
    ok = has_default and key not in {*SharedSettings.model_fields, *Folders.model_fields}
    require(ok, f"a setting of {name}", key, expected)


def unknown_method(what: str, name: object) -> str:
    """Returns the error message for an unknown method."""
    known = "one of those that `engram methods` lists, or a plug-in's (--plugin NAME)"
    return must(what, name, known + nearest(str(name), METHODS, most=3))


_MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    "host": {
        "local": "engram.client.hosts.local",
        "molar": "engram.tables.federation.host",
        "cox": "engram.tables.survival.federation.host",
        "molar-bandit": "engram.tables.federation.bandit_host",
        "meta-ban": "engram.bandits.federation.host",
    },
    "strategy": {
        "local": "engram.strategies.running.network_strategy",
        "molar": "engram.tables.federation.strategy",
        "cox": "engram.tables.survival.federation.strategy",
        "molar-bandit": "engram.tables.federation.bandit_strategy",
        "meta-ban": "engram.bandits.federation.strategy",
    },
    "report": {
        "local": "engram.compare.reports.local",
        **dict.fromkeys(("molar", "molar-bandit"), "engram.tables.federation.report"),
        "cox": "engram.tables.survival.federation.report",
        "meta-ban": "engram.bandits.federation.report",
    },
    "models": {
        "local": "engram.home.network_package",
        **dict.fromkeys(("molar", "molar-bandit", "meta-ban"), "engram.tables.federation.models"),
        "cox": "engram.tables.survival.federation.models",
    },
}
"""The modules of our own families; those of other packages register themselves."""


class Families(dict[str, _T]):
    """One part of each family of methods, imported when it is first asked for."""

    def __init__(self, part: Literal["host", "strategy", "report", "models"]) -> None:
        super().__init__()
        self._part = part

    def __missing__(self, family: str) -> _T:
        if module := _MODULES[self._part].get(family):
            import_module(module)
        if family not in self:
            raise KeyError(family)
        return self[family]

    def register(self, family: str) -> Callable[[_T], _T]:
        """Registers the decorated part of a family."""

        def register(part: _T) -> _T:
            self[family] = part
            return part

        return register


def family(plug_in: str, *, compared: bool = False) -> list[str]:
    """Returns the names of a family's methods; or of those that are compared by default."""
    some = ((name, method) for name, method in METHODS.items() if method.plug_in == plug_in)
    return [name for name, method in some if method.compared or not compared]


LEAST_REPORTED: Final = 8
"""Turns that a node of its own reports together, at least."""

ReportEvery = Annotated[
    Int,
    Field(
        ge=1,
        description="turns that a client reports together, by sums of rewards and regrets; "
        "smaller values reveal more about single turns",
    ),
]


def _regret(played: "Tensor", best: "Tensor") -> "Tensor":
    return (best - played).sum()


REGRET: Final = Metric("regret", _regret, low=0, high=LARGEST, better="lower", partial=False)
"""Sum over turns of what the best arms would have paid more, in expectation, than those played."""
