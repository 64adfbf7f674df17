"""What one experiment is, checked once, before anything is started."""

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

_TOLD: Final = 10  # faults that a message names
FIRST: Final = next(iter(METHODS))
"""The method of an experiment that names none."""

_RENAMED: Final = {"algorithm": "method", "tell-turns": "report-every"}
_ASIDE: Final = frozenset(  # they say how far, how and where to run, and bear on no number
    {"num_rounds", "checkpoint_every", "out", "resume", "timeout", "min_clients"}
    | (MachineSettings.model_fields.keys() - {"data_dir"})
)

ARGUMENTS: Final = ("out", "resume")
"""Shared settings that functions have arguments of their own for."""

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Method)
S = TypeVar("S", bound=Settings)


def lists_settings(function: F) -> F:
    """Names the settings in the signature of a function that takes them, for notebooks to complete.

    Of those that several methods have, the default is the first one's.
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
    """Settings that do not go together, though each is possible.

    Attributes:
        experiment: With these settings, for a look at its data; it is not to be run.
    """

    experiment: "Experiment"


class Experiment(SharedSettings):
    """Everything that determines a run: the same experiment gives the same numbers.

    But for the noise of privacy on nodes, which is secret: see ``federation.noise``.

    Settings are given by name, shared ones and those of the chosen method alike:
    ``Experiment(method="pfedme", eta=0.2, num_rounds=50)``. In files, and on command lines, ``_``
    is written ``-``, and what is a method's own may be written ``METHOD.key``.

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
        """Reads a flat mapping of what a user has given; what it lacks has its default."""
        return cls(**config)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads Flower's run config, which has the defaults of every method.

        A setting that the method does not read, and that has its default, counts as not given.
        """
        method = METHODS.get(str(config.get("method", FIRST)))
        foreign = default_config()
        for key in _keys_of(method) if method else ():
            foreign.pop(key, None)
        return cls(**{k: v for k, v in config.items() if k not in foreign or foreign[k] != v})

    def of(self, method: type[M]) -> M:
        """Returns the method with its own settings, as one of a certain class.

        Raises:
            TypeError: It is of another one.
        """
        if not isinstance(self.own, method):
            raise TypeError(f"{self.method} is no {method.__name__}")
        return self.own

    @property
    def rounds(self) -> int:
        """Rounds that a run has."""
        return self.own.rounds(self)

    def on_machine(self, own: Mapping[str, Any]) -> Self:
        """Returns the experiment with a machine's own values of ``MachineSettings``.

        Raises:
            Refused: One of them is impossible.
        """
        keys = MachineSettings.all_keys()
        return self.from_config(self.to_config() | {k: own[k] for k in keys if k in own})

    def to_config(self) -> dict[str, Scalar]:
        """Returns the settings that the method reads, with the method's own as ``METHOD.key``."""
        own = {f"{self.method}.{key}": v for key, v in self.own.model_dump(by_alias=True).items()}
        aside = {"own", *self.own.unread}
        return self.model_dump(by_alias=True, exclude=aside) | own

    def identity(self) -> dict[str, Scalar]:
        """Returns the settings that bear on the numbers: all but how far, how and where to run."""
        ahead = {"num_rounds"} if self.schedule != "constant" else set()
        aside = {key_of(name) for name in _ASIDE - self.own.decisive - ahead}
        return {key: value for key, value in self.to_config().items() if key not in aside}

    def digest(self) -> str:
        """Returns 16 hex digits of ``identity``, but for where data are, which is a machine's."""
        same = {key: value for key, value in self.identity().items() if key != "data-dir"}
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def default_config() -> dict[str, Scalar]:
    """Returns the default of every setting there is; a method's own as ``METHOD.key``."""
    config: dict[str, Scalar] = {"method": FIRST, **SharedSettings.defaults()}
    for name, method in METHODS.items():
        config |= {f"{name}.{key}": value for key, value in method.defaults().items()}
    return config


def read_by(method: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is left of ``config`` without the settings that a method does not read."""
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
    """Returns the shared settings, and the method with its own, each of which is possible.

    Raises:
        Refused: One line that says all that is wrong with them.
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
    """Returns a group of settings; None, and adds to ``wrong``, if some are impossible."""
    try:
        return group.model_validate(values)
    except ValidationError as error:
        wrong += wrong_values(error, prefix)
        return None


def _strange(keys: Sequence[str], method: type[Method] | None) -> list[str]:
    """Says what is wrong with settings that the method does not have: of each, or of how many."""
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
    """Returns the methods that have a setting, whether or not one of them is named before it."""
    owner, dot, own = key.rpartition(".")
    named = [owner] if dot else list(METHODS)
    return [name for name in named if name in METHODS and own in METHODS[name].all_keys()]
