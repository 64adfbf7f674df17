"""The base class of settings, the types of their values, and texts about wrong ones."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from engram.core.checks import Fault, brief, must, require
from engram.networks.optimizers import BUILT_IN_OPTIMIZERS, OPTIMIZERS, by_pattern
from engram.settings.errors import one_line
from engram.settings.settings_files import BY_PATTERN

_Check = Callable[[str], str]
Scalar = bool | int | float | str
"""The value of a setting, as TOML and command lines write it."""


def no_bool(value: object) -> object:
    """Refuses a bool, which Python counts as an int: `num-rounds = true` is a slip, not 1."""
    expect(not isinstance(value, bool), "a number")
    return value


_WIDEST = 2**20  # of a layer
_DEEPEST = 64  # hidden layers

_MOST: Final = 10**6
_FAR: Final = 1e30

_KINDS: Final = {
    **dict.fromkeys(("int_parsing", "int_parsing_size", "int_from_float"), "a valid integer"),
    "float_parsing": "a valid number",
    "bool_parsing": "a valid boolean",
    **dict.fromkeys(("dict_type", "model_type"), "an object"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "less_than_equal": "less than or equal to {le:.16g}",
}
"""Expected values by pydantic's types of errors, where its own words say something else."""

_OTHER_WORDS: Final = {
    **dict.fromkeys(("lr", "learning-rate", "learningrate", "step-size", "stepsize"), "eta"),
    **dict.fromkeys(("server-lr", "server-learning-rate", "global-lr"), "server-eta"),
    **dict.fromkeys(("epochs", "num-epochs", "n-epochs", "local-ep"), "local-epochs"),
    **dict.fromkeys(("batchsize", "bs", "local-bs", "batch"), "batch-size"),
    **dict.fromkeys(("rounds", "n-rounds", "num-server-rounds", "comm-rounds"), "num-rounds"),
    **dict.fromkeys(("clients", "n-clients", "nclients", "num-users"), "num-clients"),
    **dict.fromkeys(("fraction-fit", "fraction-train", "frac", "join-ratio"), "clients-per-round"),
}
"""Settings by what other libraries call them."""

Int = Annotated[int, BeforeValidator(no_bool), Field(le=_MOST)]
"""A whole number: of rows, steps or clients. What takes time or memory many times over has a bound
of its own below this one."""
Whole = Annotated[Int, Field(ge=0)]
Count = Annotated[Int, Field(ge=1)]


def _patterns(text: str) -> str:
    fits = all(name and 0 <= value <= _FAR for name, value in by_pattern(text).items())
    expect(fits, 'a table of patterns with numbers, 0 or more, such as {"0.*" = 0.03}')
    return text


def with_tables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces tables of patterns by their texts."""
    found = dict(config)
    for key, value in config.items():
        if isinstance(value, Mapping) and (word := key.rpartition(".")[2]) in BY_PATTERN:
            found[f"{word}-by"] = ",".join(f"{name}={number}" for name, number in value.items())
            del found[key]
    return found


Patterns = Annotated[str, AfterValidator(_patterns)]
"""Numbers by patterns of parameters: see ``engram.networks.optimizers.by_pattern``."""

Float = Annotated[float, BeforeValidator(no_bool), Field(le=_FAR)]
"""A number that float32 holds, also as a multiple. One that is squared has a bound of its own."""
Amount = Annotated[Float, Field(ge=0)]


def registered(
    key: str, known: Collection[str], built_in: Collection[str] = (), *, empty: bool = False
) -> _Check:
    """Returns the check of a setting that names something of the platform's, or of a user's.

    Plug-ins and callers add to ``known``. If ``empty``, the setting may name nothing.
    """

    def check(value: str) -> str:
        if value in known or value in built_in or (empty and not value):
            return value
        names = [*built_in, *known]
        some = f"one of {', '.join(names)}, or one" if names else "one"
        own = "of your own: a function, in Python, or a plug-in's (--plugin NAME)"
        raise ValueError(must(key, value, f"{some} {own}{nearest(value, names)}"))

    return check


Optimizer = Annotated[
    str, AfterValidator(registered("optimizer", OPTIMIZERS, built_in=BUILT_IN_OPTIMIZERS))
]
"""The name of an optimizer."""


def choice_with_number(**most: float) -> Callable[[str], str]:
    """Returns the check of a setting that is a name, or for some names ``NAME:NUMBER``.

    Args:
        most: By name, with ``_`` for ``-``, the largest number that it takes, above 0; 0: none. Of
            an int, numbers are whole.
    """
    limits = {key_of(name): limit for name, limit in most.items()}

    def check(value: str) -> str:
        name, colon, number = value.partition(":")
        if name not in limits:
            expect(False, f"one of {', '.join(limits)}{nearest(name, limits)}")
        if colon:
            expect(limits[name] > 0, f"{name}, without a number")
            whole = isinstance(limits[name], int)
            kind = "a whole number, " if whole else ""
            expected = f"{name}:NUMBER, {kind}above 0 and at most {limits[name]:g}"
            expect(bool(re.fullmatch(r"[\d.e+-]{1,20}", number)), expected)
            try:
                expect(0 < float(number) <= limits[name], expected)
                expect(not whole or float(number).is_integer(), expected)
            except ValueError:
                expect(False, expected)
        return value

    return check


def number_in(value: str, default: float) -> float:
    """Returns the number of a setting such as ``top-k:0.05``."""
    number = value.partition(":")[2]
    return float(number) if number else default


class Range(NamedTuple):
    """Where `engram tune` looks for a number: from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool = False  # whether its logarithm is drawn evenly: for values of any magnitude

    def __str__(self) -> str:
        """Returns it as ``engram tune --search`` takes it: ``0.01..1:log``."""
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


def searched(low: float, high: float, *, log: bool = False) -> dict[str, Any]:
    """Declares where a setting is searched: ``Field(0.1, json_schema_extra=searched(0.01, 1))``."""
    return {"search": Range(low, high, log)}


def searched_range(field: FieldInfo) -> Range | None:
    """Returns where a setting is searched, if it says so."""
    extra: Any = field.json_schema_extra
    return extra.get("search") if isinstance(extra, dict) else None


def key_of(field: str) -> str:
    """Returns a field's key in files and on command lines: num-rounds for ``num_rounds``."""
    return field.rstrip("_").replace("_", "-")


def range_of(field: FieldInfo) -> str:
    """Describes the values that a field takes: "at least 0, below 1", "hard or soft"."""
    if field.annotation is bool:
        return "true or false"
    if field.annotation is str:
        return "text"
    if choices := get_args(field.annotation):
        return " or ".join([", ".join(choices[:-1]), choices[-1]])
    words = ["whole number" if field.annotation is int else "number"]
    for bound, text in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most")):
        values = [getattr(limit, bound) for limit in field.metadata if hasattr(limit, bound)]
        words += [f"{text} {value}" for value in values if value not in (_MOST, _FAR)]
    return ", ".join(words)


class Settings(BaseModel):
    """A group of settings: a field for each, with its default, its range and its meaning."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=key_of,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    @classmethod
    @cache
    def all_keys(cls) -> tuple[str, ...]:
        """Returns the keys of all settings of the group, in their order."""
        return tuple(map(key_of, cls.model_fields))

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Returns every setting's default, by its key."""
        return {key_of(name): field.default for name, field in cls.model_fields.items()}


def wrong_values(error: ValidationError, owner: str = "") -> list[Fault]:
    """Returns a fault for each setting that pydantic found wrong, with ``owner`` before its key."""
    faults = []
    for detail in error.errors():
        keys = tuple(key_of(str(field)) for field in detail["loc"][:1])
        faults.append(Fault(keys, in_words(owner + "".join(keys), dict(detail))))
    return faults


def in_words(name: str, detail: Mapping[str, Any]) -> str:
    """Returns the words for a named value that is wrong, as ``ValidationError.errors`` says."""
    if detail["type"] == "value_error":  # of a check of ours, which names the value
        return str(detail["ctx"]["error"])
    expected = detail["msg"].removeprefix("Input should be ")
    if detail["type"] in _KINDS:
        expected = _KINDS[detail["type"]].format(**detail.get("ctx", {}))
    return must(name, detail["input"], expected)


def expect(ok: bool, expected: str) -> None:
    """Refuses a field's value unless ``ok``: as ``require``, in words that name the field's key."""
    if not ok:
        raise PydanticCustomError("unfit", "{expected}", {"expected": expected})


def called_here(key: str) -> str:
    """Returns the name of a setting that other libraries call by another; or the same again."""
    owner, dot, word = key.rpartition(".")
    return f"{owner}{dot}{_OTHER_WORDS.get(word.lower(), word)}"


def closest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Returns the known name that ``name`` is another word for, or those most like it, if any."""
    names = list(known)
    meant = called_here(name)
    if meant != name and meant in names:
        return [meant]
    return difflib.get_close_matches(one_line(name), names, n=most, cutoff=0.5)


def nearest(name: str, known: Iterable[str], most: int = 1) -> str:
    """Returns ``" (did you mean X?)"`` for the closest known name, if any."""
    found = closest(name, known, most)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def widths(value: object) -> str:
    """Normalizes layer widths to text with commas; takes `hidden=40` and `hidden="40,40"` alike."""
    text = value.replace(" ", "") if isinstance(value, str) else brief(value)
    ok = re.fullmatch(r"([1-9]\d*(,[1-9]\d*)*)?", text, re.ASCII)
    require(bool(ok), "hidden", value, "whole numbers with commas, such as 40,40")
    layers = text.split(",") if text else []
    small = len(layers) <= _DEEPEST and all(
        len(width) <= len(str(_WIDEST)) and int(width) <= _WIDEST for width in layers
    )
    require(small, "hidden", value, f"at most {_DEEPEST} widths of at most {_WIDEST}")
    return text
