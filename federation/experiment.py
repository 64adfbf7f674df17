"""An experiment: its settings, checked once before anything is started."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from pydantic import ValidationError

from federation.errors import Refused, one_line
from federation.methods import METHODS, Method, unknown_method
from federation.settings.fields import Scalar, Settings, key_of, nearest, wrong_values
from federation.settings.machine import MachineSettings
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from federation.settings.given import Given, MethodName

__all__ = [
    "ARGUMENTS",
    "FIRST",
    "Experiment",
    "Inconsistent",
    "default_config",
    "lists_settings",
    "read_by",
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


class Inconsistent(Refused):
    """Settings that are each possible, but contradict each other.

    Attributes:
        experiment: An experiment with these settings, to look at its data only, not to be run.
    """

    experiment: "Experiment"


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
        Refused: One line that names every unknown or impossible setting, and every one that the
            method does not read.
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
        shared, own = _read({key_of(name): value for name, value in given.items()})
        values = shared.model_dump() | {"method": own.name, "own": own}
        wrong = list(own.problems(shared))
        if wrong:
            error = Inconsistent("; ".join(wrong))
            error.experiment = self.model_construct(**values)
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
        ahead = {"num_rounds"} if self.schedule != "constant" else set()
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


def read_by(method: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``config`` without the settings that a method does not read."""
    if method not in METHODS:
        return dict(config)
    unread = {key_of(field) for field in METHODS[method].unread}
    own = METHODS[method].all_keys()
    foreign = {k for k in config if _owners(k) and k.removeprefix(f"{method}.") not in own}
    return {key: value for key, value in config.items() if key not in unread | foreign}


def _keys_of(method: type[Method]) -> list[str]:
    """Returns the keys of all settings that a method reads."""
    shared = [key_of(name) for name in SharedSettings.model_fields if name not in method.unread]
    return ["method", *shared, *(f"{method.name}.{key}" for key in method.all_keys())]


def _read(config: Mapping[str, Any]) -> tuple[SharedSettings, Method]:
    """Validates the shared settings and the method's own.

    Raises:
        Refused: One line that names everything that is wrong with them.
    """
    name = config.get("method", FIRST)
    method = METHODS.get(name) if isinstance(name, str) else None
    keys = SharedSettings.all_keys()
    given = {key: value for key, value in config.items() if key in keys}
    others = {key: value for key, value in config.items() if key not in keys and key != "method"}
    if method is None:
        wrong = [unknown_method("method", name)]
        _validated(SharedSettings, given, "", wrong)
        wrong += _strange([key for key in others if not _owners(key)], None)
        raise Refused("; ".join(wrong))
    prefix = f"{name}."
    own = {
        key.removeprefix(prefix): value
        for key, value in others.items()
        if key.removeprefix(prefix) in method.all_keys()
    }
    wrong = _strange([key for key in others if key.removeprefix(prefix) not in own], method)
    unread = {key_of(field) for field in method.unread}
    wrong += [
        f"{key} is not a setting of {name}, which does not read it"
        for key in given
        if key in unread
    ]
    shared, chosen = (
        _validated(SharedSettings, given, "", wrong),
        _validated(method, own, prefix, wrong),
    )
    if shared is not None and chosen is not None:
        if not wrong:
            return shared, chosen
        wrong += chosen.problems(shared)
    raise Refused("; ".join(wrong))


def _validated(
    group: type[S], values: Mapping[str, Any], prefix: str, wrong: list[str]
) -> S | None:
    """Validates a group of settings; returns None and adds to ``wrong`` if some are impossible."""
    try:
        return group.model_validate(values)
    except ValidationError as error:
        wrong += wrong_values(error, prefix)
        return None


def _strange(keys: Sequence[str], method: type[Method] | None) -> list[str]:
    """Says what is wrong with settings that the method lacks: each of the first, and how many."""
    found = []
    for key in keys[:_TOLD]:
        short = one_line(key)
        owners = _owners(key)
        known = [*SharedSettings.all_keys(), *(method.all_keys() if method is not None else ())]
        known += default_config() if "." in key else ()
        if method is not None and owners:
            words = f"is a setting of {', '.join(owners)}, and the method is {method.name}"
        elif key in _RENAMED:
            words = f"is called {_RENAMED[key]} now"
        else:
            words = f"is not a setting{nearest(key.replace('_', '-'), known)}"
        found.append(f"{short} {words}")
    return found if len(keys) <= _TOLD else [*found, f"... {len(keys)} keys are not settings"]


def _owners(key: str) -> list[str]:
    """Returns the methods that have a setting; of ``METHOD.key``, only the one it names."""
    owner, dot, own = key.rpartition(".")
    named = [owner] if dot else list(METHODS)
    return [name for name in named if name in METHODS and own in METHODS[name].all_keys()]
