"""An experiment: its settings, checked once before anything is started."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, Unpack

from pydantic import ValidationError

from federation.errors import Refused, brief, one_line
from federation.methods import METHODS, Method, unknown_method
from federation.settings.fields import Scalar, Settings, closest, key_of, nearest, wrong_values
from federation.settings.machine import MachineSettings
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from federation.settings.given import Given, MethodName

__all__ = [
    "ARGUMENTS",
    "FIRST",
    "Experiment",
    "Impossible",
    "default_config",
    "lists_settings",
    "owners_of",
    "read_by",
    "validated",
]

_TOLD: Final = 10  # unknown settings that a message lists
FIRST: Final = next(iter(METHODS))
"""The method of an experiment that does not name one."""

_RENAMED: Final = {"algorithm": "method", "tell-turns": "report-every"}
_ASIDE: Final = frozenset(  # how far, how and where to run; they do not affect results
    {"num_rounds", "checkpoint_every", "out", "resume", "timeout", "min_clients"}
    | (MachineSettings.model_fields.keys() - {"data_dir"})
)

ARGUMENTS: Final = ("out", "resume")
"""Shared settings that are explicit arguments of the functions that take settings."""

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Method)
S = TypeVar("S", bound=Settings)


def lists_settings(function: F) -> F:
    """Adds every setting to a function's signature, for completion in notebooks.

    A setting that several methods have shows the first method's default.
    """
    own = signature(function)
    listed = {name: p for name, p in own.parameters.items() if p.kind is not p.VAR_KEYWORD}
    groups: list[type[Settings]] = [SharedSettings, *METHODS.values()]
    for group in groups:
        for name, field in group.model_fields.items():
            if name not in ARGUMENTS:
                kind = {"default": field.default, "annotation": field.annotation}
                listed.setdefault(name, Parameter(name, Parameter.KEYWORD_ONLY, **kind))
    vars(function)["__signature__"] = own.replace(parameters=list(listed.values()))
    return function


class Impossible(Refused):
    """Settings that are impossible, each by itself or together.

    Attributes:
        experiment: What is left of them, to look at the data only: it lacks those that are
            impossible by themselves, and to read one is an AttributeError. None where the data need
            no look.
    """

    experiment: "Experiment | None" = None


class Experiment(SharedSettings):
    """Everything that determines a run: the same experiment gives the same numbers.

    The one exception is the secret noise of privacy on nodes: see ``federation.noise``.

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
        self,
        *,
        method: "MethodName" = FIRST,
        out: str = "",
        resume: str = "",
        **settings: "Unpack[Given]",
    ) -> None:
        given = {"method": method, "out": out, "resume": resume, **settings}
        read = _read({key_of(name): value for name, value in given.items()})
        values = vars(read.shared) | {"method": read.own.name, "own": read.own}
        if read.wrong:
            error = Impossible("; ".join(read.wrong))
            if read.look:
                left = self.model_construct(**values | {"own": _without(read.bad, read.own)})
                error.experiment = _without(read.bad, left)
            raise error
        super().__init__(**values)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads a flat mapping of settings; missing ones have their defaults."""
        return cls(**config)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads Flower's run config, which holds the defaults of every method.

        Settings that the method does not read are ignored where they have their defaults.
        """
        method = METHODS.get(str(config.get("method", FIRST)))
        foreign = default_config()
        for key in _keys_of(method) if method else ():
            foreign.pop(key, None)
        return cls(**{k: v for k, v in config.items() if k not in foreign or foreign[k] != v})

    def of(self, method: type[M]) -> M:
        """Returns the method with its own settings, typed as ``method``.

        Raises:
            TypeError: If it is of another class.
        """
        if not isinstance(self.own, method):
            raise TypeError(f"{self.method} is no {method.__name__}")
        return self.own

    @property
    def rounds(self) -> int:
        """Number of rounds in the run."""
        return self.own.rounds(self)

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
        """Returns the settings that affect results: all but how far, how and where to run."""
        ahead = {"num_rounds"} if self.schedule in ("cosine", "step") else set()
        aside = {key_of(name) for name in _ASIDE - self.own.decisive - ahead}
        return {key: value for key, value in self.to_config().items() if key not in aside}

    def digest(self) -> str:
        """Returns 16 hex digits of ``identity``, but for where data are, which is a machine's."""
        same = {key: value for key, value in self.identity().items() if key != "data-dir"}
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def default_config() -> dict[str, Scalar]:
    """Returns every setting's default; a method's own as ``METHOD.key``."""
    config: dict[str, Scalar] = {"method": FIRST, **SharedSettings.defaults()}
    for name, method in METHODS.items():
        config |= {f"{name}.{key}": value for key, value in method.defaults().items()}
    return config


def read_by(method: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``config`` without the settings that a method does not read."""
    if not isinstance(method, str) or method not in METHODS:
        return dict(config)
    unread = {key_of(field) for field in METHODS[method].unread}
    own = METHODS[method].all_keys()
    foreign = {k for k in config if owners_of(k) and k.removeprefix(f"{method}.") not in own}
    return {key: value for key, value in config.items() if key not in unread | foreign}


def _keys_of(method: type[Method]) -> list[str]:
    """Returns the keys of all settings that a method reads."""
    shared = [key_of(name) for name in SharedSettings.model_fields if name not in method.unread]
    return ["method", *shared, *(f"{method.name}.{key}" for key in method.all_keys())]


class _Read(NamedTuple):
    """Settings as they were read.

    Attributes:
        shared: The shared ones; those that are impossible have their defaults.
        own: The method's own, likewise.
        bad: Keys of those that are impossible by themselves, or that a misspelt one may have meant.
        wrong: What is wrong, a line for each fault.
        look: Whether to look at the data as well, which takes long: not where a key is none of the
            method's, nor where the others have their defaults and fit together.
    """

    shared: SharedSettings
    own: Method
    bad: set[str]
    wrong: list[str]
    look: bool


def _read(config: Mapping[str, Any]) -> _Read:
    """Validates the shared settings and the method's own.

    Raises:
        Refused: If the method is unknown; the line names all else that is wrong without it.
    """
    name = config.get("method", FIRST)
    method = METHODS.get(name) if isinstance(name, str) else None
    keys = SharedSettings.all_keys()
    given = {key: value for key, value in config.items() if key in keys}
    others = {key: value for key, value in config.items() if key not in keys and key != "method"}
    shared, bad, wrong = validated(SharedSettings, given)
    if method is None:
        unowned = {key: value for key, value in others.items() if not owners_of(key)}
        strange, _ = _strange(unowned, None)
        raise Refused("; ".join([unknown_method("method", name), *wrong, *strange]))
    prefix = f"{name}."
    own = {
        key.removeprefix(prefix): value
        for key, value in others.items()
        if key.removeprefix(prefix) in method.all_keys()
    }
    chosen, bad_own, wrong_own = validated(method, own, prefix)
    unknown = {key: value for key, value in others.items() if key.removeprefix(prefix) not in own}
    strange, meant = _strange(unknown, method)
    unread = [
        f"{key} is not a setting of {name}, which does not read it"
        for key in given
        if key in map(key_of, method.unread)
    ]
    bad |= bad_own | meant
    together = [line for line in chosen.problems(shared) if not _names(line, bad)]
    faults = [*strange, *unread, *wrong, *wrong_own, *together]
    special = any(group.model_dump(exclude_defaults=True) for group in (shared, chosen))
    look = not (strange or unread) and (special or bool(together))
    return _Read(shared, chosen, bad, faults, look)


def _without(keys: Collection[str], settings: S) -> S:
    """Returns settings that lack some: to read one of these is an AttributeError."""
    left = settings.model_copy()
    for field in filter(lambda field: key_of(field) in keys, vars(settings)):
        del vars(left)[field]
    return left


def validated(
    group: type[S], values: Mapping[str, Any], prefix: str = ""
) -> tuple[S, set[str], list[str]]:
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
        # A fault that is in no field may be in any of those given.
        bad = {str(key) for fault in error.errors() for key in fault["loc"][:1] or values}
        rest = {key: value for key, value in values.items() if key not in bad}
        settings, worse, _ = validated(group, rest)  # whose faults the defaults may have caused
        return settings, bad | worse, wrong_values(error, prefix)


def _names(line: str, keys: Collection[str]) -> bool:
    """Returns whether a line names one of the settings."""
    return any(re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", line) for key in keys)


def _strange(
    settings: Mapping[str, Any], method: type[Method] | None
) -> tuple[list[str], set[str]]:
    """Returns a fault for settings that the method lacks: the first ones, and how many.

    Returns:
        The lines, and the keys of the settings that may have been meant.
    """
    found, meant = [], set()
    for key, value in [*settings.items()][:_TOLD]:
        owners = owners_of(key)
        known = [*SharedSettings.all_keys(), *(method.all_keys() if method is not None else ())]
        known += default_config() if "." in key else ()
        if method is not None and owners:
            default = " (the default)" if method.name == FIRST else ""
            words = f"is a setting of {', '.join(owners)}, and the method is {method.name}{default}"
        elif key in _RENAMED:
            words = f"is called {_RENAMED[key]} now"
            meant.add(_RENAMED[key])
        elif key in METHODS:
            expected = f"a table of settings, [{key}], or {key}.KEY = VALUE"
            words = f"must be {expected}, got {brief(value)}"
        else:
            plain = key.replace("_", "-")
            words = f"is not a setting{nearest(plain, known)}"
            meant |= {name.rpartition(".")[2] for name in closest(plain, known)}
        found.append(f"{one_line(key)} {words}")
    if len(settings) > _TOLD:
        found.append(f"... {len(settings)} keys are not settings")
    return found, meant


def owners_of(key: str) -> list[str]:
    """Returns the methods that have a setting; of ``METHOD.key``, only the one it names."""
    owner, dot, own = key.rpartition(".")
    named = [owner] if dot else list(METHODS)
    return [name for name in named if name in METHODS and own in METHODS[name].all_keys()]
