"""An experiment: its settings, checked once before anything is started."""

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from inspect import Parameter, Signature, signature
from typing import Any, Final, Self, TypeVar

from pydantic import ValidationError

from engram.core.checks import Fault, brief, must
from engram.guards.facts import Fact
from engram.networks.registry import differs_by_client
from engram.settings.base import SharedSettings
from engram.settings.conflicts import facts_of, parts_of
from engram.settings.data import DataSettings, with_schema
from engram.settings.errors import Names, Refused, one_line
from engram.settings.families import METHODS, Method, unknown_method
from engram.settings.fields import (
    Scalar,
    Settings,
    closest,
    key_of,
    nearest,
    with_tables,
    wrong_values,
)
from engram.settings.files import sorted_json
from engram.settings.model_and_evaluation import EvaluationSettings, ModelSettings
from engram.settings.network import NetworkMethod
from engram.settings.run import Folders, MachineSettings
from engram.settings.settings_files import in_run_config

_TOLD: Final = 10  # unknown settings that a message lists
FIRST: Final = next(iter(METHODS))
"""The method of an experiment that does not name one."""

_IN_SCHEMA: Final = "in the schema"
FORMER: Final[Mapping[str, tuple[Scalar | None, str]]] = {
    "algorithm": (None, "method"),
    "tell-turns": (None, "report-every"),
    "text-column": ("", f'columns.NAME = {{kind = "text"}} {_IN_SCHEMA}'),
    "tokenizer": ("words", f"columns.NAME.tokenizer {_IN_SCHEMA}"),
    "text-length": (128, f"columns.NAME.length {_IN_SCHEMA}"),
    "vocabulary-size": (5000, f"columns.NAME.vocabulary {_IN_SCHEMA}"),
    "least-count": (5, f"columns.NAME.least {_IN_SCHEMA}"),
    "categories": ("", f'columns.NAME = {{values = ["A", "B"]}} {_IN_SCHEMA}'),
    "missing-values": ("", f'file.missing = ["?"], or columns.NAME.missing, {_IN_SCHEMA}'),
    "optional-columns": ("", f"columns.NAME.default {_IN_SCHEMA}"),
    "synchrony": ("synchronous", "buffer-size, which is 0 where a round waits for all"),
    "adapt-optimizer": ("sgd", "nothing: fine-tuning is by sgd"),
    "attack-scale": (1.0, "attack = NAME:SCALE"),
    "share": ("", "personal = !PATTERNS, for all but these"),
    "too-few-rows": ("leave-out", "nothing: clients with too few rows are left out by name"),
    "compress-share": (0.01, "compress = top-k:SHARE"),
    "compress-rank": (2, "compress = low-rank:RANK"),
    "server-radius": (10.0, "server-step = universal:RADIUS"),
    "step-seconds": (0.1, "clock = drawn,step-seconds=NUMBER"),
    "bandwidth": (1e6, "clock = drawn,bandwidth=NUMBER"),
    "speed-spread": (0.0, "clock = drawn,speed-spread=NUMBER"),
    "stragglers": (0.0, "clock = drawn,stragglers=NUMBER"),
    "slowdown": (10.0, "clock = drawn,slowdown=NUMBER"),
    "hours": (24.0, "nothing: simulated clients work all day"),
}
"""Former settings: their default, at which they are passed over, and their replacement."""

_ASIDE: Final = frozenset(  # how far, how and where to run; they do not affect results
    {"num_rounds", "checkpoint_every", "out", "resume", "timeout", "min_clients"}
    | (MachineSettings.model_fields.keys() - {"data_dir"})
)
_LATER: Final = {"guards": "", "adapt_part": "all", "elsewhere": 0}
"""Settings that runs of former versions lack, with what these did."""

_LOOKED_AT: Final = frozenset({"batch-size", "privacy", "seed"}).union(
    *(g.all_keys() for g in (DataSettings, ModelSettings, EvaluationSettings, MachineSettings))
)
"""Shared settings on which a fault of data or network may depend."""

ARGUMENTS: Final = ("out", "resume")
"""Settings that are explicit arguments of the functions that take settings."""

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Method)
S = TypeVar("S", bound=Settings)


def lists_settings(function: F) -> F:
    """Adds every setting to a function's signature, for completion in notebooks.

    A setting that several methods have shows the first method's default.
    """
    own = signature(function)
    listed = {name: p for name, p in own.parameters.items() if p.kind is not p.VAR_KEYWORD}
    groups: list[type[Settings]] = [SharedSettings, Folders, *METHODS.values()]
    for group in groups:
        for name, field in group.model_fields.items():
            if name not in ARGUMENTS:
                kind = {"default": field.default, "annotation": field.annotation}
                listed.setdefault(name, Parameter(name, Parameter.KEYWORD_ONLY, **kind))
    vars(function)["__signature__"] = _Listed(own, [*listed.values()])
    return function


class _Listed(Signature):
    """A signature with all settings, and a short text for ``help``."""

    def __init__(self, own: Signature, parameters: Sequence[Parameter]) -> None:
        super().__init__(parameters, return_annotation=own.return_annotation)
        plain = [p.replace(annotation=Parameter.empty) for p in own.parameters.values()]
        self._text = str(Signature(plain))

    def __str__(self) -> str:
        return self._text

    def format(self, **_: object) -> str:
        """Returns the text; ``help`` of Python 3.13 calls it with a width."""
        return self._text


class Impossible(Refused):
    """Settings that are impossible, each by itself or together.

    Attributes:
        invalid: Keys of those that are impossible by themselves.
        possible: The experiment in which these have their defaults, to look at the data only. None
            where the data need no look.
    """

    invalid: Set[str] = frozenset()
    possible: "Experiment | None" = None

    def is_apart(self, fault: Fault) -> bool:
        """Returns whether a fault of data or network depends on none of ``invalid``."""
        return self.invalid.isdisjoint(fault.keys or _LOOKED_AT)


class Experiment(SharedSettings, Folders):
    """Everything that determines a run: the same experiment gives the same numbers.

    The one exception is the secret noise of privacy on nodes: see ``engram.guards.noise``.

    Shared settings and those of the chosen method are given by name alike:
    ``Experiment(method="pfedme", eta=0.2, num_rounds=50)``. Files and command lines write ``-``
    for ``_``, and may write a method's own setting as ``METHOD.key``.

    Attributes:
        method: Name of the method.
        own: The method, with its own settings.

    Raises:
        Impossible: One line that names every unknown or impossible setting, every one that the
            method does not read, and those that contradict each other.
        Refused: The method is unknown; the line names the shared settings that are impossible.
    """

    method: str = FIRST
    own: Method

    @lists_settings
    def __init__(
        self, *, method: str = FIRST, out: str = "", resume: str = "", **settings: Any
    ) -> None:
        given = {"method": method, "out": out, "resume": resume, **settings}
        super().__init__(**_read(by_key(given)))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads a flat mapping of settings; missing ones have their defaults."""
        return cls(**config)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads Flower's run config: see ``in_run_config``.

        Raises:
            Refused: As ``Experiment`` and ``in_run_config``; or the schema names a file, since
                machines open none that a run names.
        """
        found = in_run_config(config)
        if (schema := str(found.get("schema", ""))) and "=" not in schema:
            raise Refused(must("schema", schema, "lines of a schema, not a file, in a run config"))
        return cls(**found)

    def of(self, method: type[M]) -> M:
        """Returns the method with its own settings; a ``TypeError`` if it is no ``method``."""
        if not isinstance(self.own, method):
            raise TypeError(f"{self.method} is no {method.__name__}")
        return self.own

    @property
    def network(self) -> NetworkMethod:
        """The method with its own settings, if it trains networks; else a ``TypeError``."""
        return self.of(NetworkMethod)

    @property
    def rounds(self) -> int:
        """Number of rounds in the run."""
        return self.own.rounds(self)

    @property
    def facts(self) -> Set[Fact]:
        """The facts that hold after all settings; see ``engram.guards.facts``."""
        return facts_of(self, self.own)

    @property
    def combines(self) -> bool:
        """Whether a node may send the mean of its clients' updates in their place."""
        each = any(Fact.EACH in part.needs for part in parts_of(self, self.own))
        return Fact.MEAN in self.own.facts and not each and self.attack == "none"

    @property
    def is_private(self) -> bool:
        """Whether privacy is promised, so that no figure of rows leaves a client without noise."""
        return Fact.OPEN not in self.facts

    @property
    def hides_rows(self) -> bool:
        """Whether all that leaves a client hides its single rows."""
        return Fact.ROWS in self.facts

    @property
    def covers_clients(self) -> bool:
        """Whether all that leaves a client has noise, its scores and failures too."""
        return Fact.COVERED in self.facts

    def for_client(self, client: int, names: Names) -> Self:
        """Returns the experiment with one client's network, where networks differ by client."""
        if not differs_by_client(self.model):
            return self
        return self.model_copy(update={"model": f"{self.model}:{names.get(client, client)}"})

    def on_machine(self, own: Mapping[str, Any]) -> Self:
        """Returns the experiment with the machine's own values of ``MachineSettings``.

        Raises:
            Refused: If one of them is impossible.
        """
        keys = MachineSettings.all_keys()
        return self.from_config(self.to_config() | {k: own[k] for k in keys if k in own})

    def to_config(self) -> dict[str, Scalar]:
        """Returns the settings that the method reads, with the method's own as ``METHOD.key``."""
        own = {f"{self.method}.{key}": v for key, v in self.own.model_dump(by_alias=True).items()}
        aside = {"own", *self.own.unread}
        return self.model_dump(by_alias=True, exclude=aside) | own

    def identity(self) -> dict[str, Scalar]:
        """Returns the settings that affect results."""
        planned = self.schedule in ("cosine", "step") or self.epsilon  # for so many rounds
        ahead = {"num_rounds"} if planned else set()
        none = {name for name, former in _LATER.items() if getattr(self, name) == former}
        aside = {key_of(name) for name in (_ASIDE - self.own.decisive - ahead) | none}
        return {key: value for key, value in self.to_config().items() if key not in aside}

    def digest(self) -> str:
        """Returns 16 hex digits of ``identity`` without ``data-dir``."""
        same = {key: value for key, value in self.identity().items() if key != "data-dir"}
        return hashlib.sha256(sorted_json(same)).hexdigest()[:16]


def by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by key; one in a method's table, ``ditto={"eta": 1}``, as ``ditto.eta``."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = key_of(name)
        own = value.items() if key in METHODS and isinstance(value, Mapping) else None
        found |= {key: value} if own is None else {f"{key}.{key_of(str(k))}": v for k, v in own}
    return found


def default_config() -> dict[str, Scalar]:
    """Returns every setting's default; a method's own as ``METHOD.key``."""
    config: dict[str, Scalar] = {"method": FIRST, **SharedSettings.defaults(), **Folders.defaults()}
    for name, method in METHODS.items():
        config |= {f"{name}.{key}": value for key, value in method.defaults().items()}
    return config


def read_by(method: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``config`` without the settings that a method does not read."""
    if not isinstance(method, str) or method not in METHODS:
        return dict(config)
    unread = {key_of(field) for field in METHODS[method].unread}
    read = {*METHODS[method].all_keys(), *SharedSettings.all_keys()}
    foreign = {k for k in config if k.removeprefix(f"{method}.") not in read and owners_of(k)}
    return {key: value for key, value in config.items() if key not in unread | foreign}


def by_schema(config: Mapping[str, Any]) -> dict[str, Any]:
    """Applies ``with_schema``, without settings that the method does not read."""
    found, method = with_schema(config), config.get("method", FIRST)
    return read_by(method, found) | {key: found[key] for key in config}


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an experiment: the shared settings, and the method with its own.

    Raises:
        Impossible: As ``Experiment`` says. The data, which take long, need no look where a key is
            none of the method's, nor where all that is possible has its default.
        Refused: If the method is unknown; the line names all else that is wrong without it.
    """
    config = by_schema(with_tables(without_former(config)))
    name = config.get("method", FIRST)
    method = METHODS.get(name) if isinstance(name, str) else None
    keys = SharedSettings.all_keys()
    given = {key: value for key, value in config.items() if key in keys}
    places = {key: config[key] for key in Folders.all_keys() if key in config}
    aside = {"method", *keys, *places}
    others = {key: value for key, value in config.items() if key not in aside}
    shared, invalid, wrong = validated(SharedSettings, given)
    folders, _, wrong_places = validated(Folders, places)
    wrong += wrong_places
    shared = _fitted(shared, given)
    if method is None:
        unowned = {key: value for key, value in others.items() if not owners_of(key)}
        raise Refused(unknown_method("method", name), *wrong, *_strange(unowned, None))
    prefix = f"{name}."
    bare = {key.removeprefix(prefix): value for key, value in others.items()}
    own = {key: value for key, value in bare.items() if key in method.all_keys()}
    chosen, invalid_own, wrong_own = validated(method, own, prefix)
    unknown = {key: value for key, value in others.items() if key.removeprefix(prefix) not in own}
    strange = _strange(unknown, method)
    unread = {key_of(field) for field in method.unread}
    strange += [
        Fault((key,), f"{key} is not a setting of {name}, which does not read it")
        for key in given
        if key in unread
    ]
    invalid |= invalid_own.union(*(fault.keys for fault in strange))
    together = [fault for fault in chosen.problems(shared) if invalid.isdisjoint(fault.keys)]
    fields = {**vars(shared), **vars(folders), "method": name, "own": chosen}
    if faults := [*strange, *wrong, *wrong_own, *together]:
        error = Impossible(*faults)
        error.invalid = invalid
        special = any(group.model_dump(exclude_defaults=True) for group in (shared, chosen))
        if not strange and (special or together):
            error.possible = Experiment.model_construct(**fields)
        raise error
    return fields


def without_former(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without those that former versions recorded as they are by default."""
    found = {k: v for k, v in config.items() if k not in FORMER or v != FORMER[k][0]}
    if config.get("synchrony") == "synchronous":  # where buffer-size was not looked at
        found["buffer-size"] = 0
    return found


def _fitted(shared: SharedSettings, given: Mapping[str, Any]) -> SharedSettings:
    unseen, asked = shared.unseen_clients, shared.clients_per_round
    if shared.unseen and "unseen-clients" not in given:
        unseen = len(shared.unseen_names)
    if "clients-per-round" not in given:
        asked = min(asked, max(1, shared.num_clients - unseen))
    return shared.model_copy(update={"unseen_clients": unseen, "clients_per_round": asked})


def validated(
    group: type[S], values: Mapping[str, Any], prefix: str = ""
) -> tuple[S, set[str], list[Fault]]:
    """Validates a group of settings.

    Returns:
        The settings, in which those that are impossible have their defaults; the keys of these; and
        what is wrong with them, where ``prefix`` stands before each key.
    """
    try:
        return group.model_validate(values), set(), []
    except ValidationError as error:
        if not values:
            raise
        faults = wrong_values(error, prefix)
        # A fault that is in no field may be in any of those given.
        bad = {key for fault in faults for key in fault.keys or values}
        rest = {key: value for key, value in values.items() if key not in bad}
        settings, worse, _ = validated(group, rest)  # whose faults the defaults may have caused
        return settings, bad | worse, faults


def _strange(settings: Mapping[str, Any], method: type[Method] | None) -> list[Fault]:
    """Returns a fault for each of the first unknown settings, and their number.

    Their keys are those of the settings that may have been meant.
    """
    found = []
    for key, value in [*settings.items()][:_TOLD]:
        owners, meant = owners_of(key), list[str]()
        known = [*SharedSettings.all_keys(), *Folders.all_keys()]
        known += method.all_keys() if method is not None else ()
        known += default_config() if "." in key else ()
        if method is not None and owners:
            default = " (the default)" if method.name == FIRST else ""
            words = f"is a setting of {', '.join(owners)}, and the method is {method.name}{default}"
        elif key in FORMER:
            words = f"is no setting any more: write {FORMER[key][1]}"
            meant = [FORMER[key][1].partition(" ")[0]]
        elif key in METHODS:
            in_python = f'{key.replace("-", "_")}={{"KEY": VALUE}} in Python'
            expected = f"a table of its settings ([{key}] in a file, {in_python})"
            expected += f" or {key}.KEY = VALUE"
            words = f"must be {expected}, got {brief(value)}"
        else:
            plain = key.replace("_", "-")
            words = f"is not a setting{nearest(plain, known)}"
            meant = [name.rpartition(".")[2] for name in closest(plain, known)]
        found.append(Fault(tuple(meant), f"{one_line(key)} {words}"))
    if len(settings) > _TOLD:
        found.append(Fault((), f"... {len(settings)} keys are not settings"))
    return found


def owners_of(key: str) -> list[str]:
    """Returns the methods that have a setting; of ``METHOD.key``, only the one it names."""
    owner, dot, own = key.rpartition(".")
    named = [owner] if dot else list(METHODS)
    return [name for name in named if name in METHODS and own in METHODS[name].all_keys()]
