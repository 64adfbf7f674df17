"""Which settings of a method are searched, and where."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engram.checks import must
from federation.errors import Refused, brief
from federation.methods import METHODS, Method
from federation.methods.local import PERSONALIZED, LocalMethod
from federation.settings.fields import Range, Scalar, key_of, nearest, searched_range
from federation.settings.shared import SharedSettings

__all__ = ["Dimension", "Space", "space_of"]

_SHARED = "adapt-lr"


class Dimension(NamedTuple):
    """Where a setting is searched.

    Attributes:
        key: The setting.
        within: A range, or the values that it may have.
        default: Where the search begins.
        whole: Whether it is a whole number.
    """

    key: str
    within: Range | tuple[Scalar, ...]
    default: Scalar
    whole: bool = False


Space = tuple[Dimension, ...]


def space_of(name: str, fixed: Mapping[str, Any], asked: Sequence[str] = ()) -> Space:
    """Returns the settings of a method that are searched.

    These are its own ones that declare a range, and ``adapt-lr`` if it serves clients by fine-tuned
    models; but not what is fixed.

    Args:
        name: The method.
        fixed: Settings by key, the method's own without its name.
        asked: Ranges in place of the declared ones, and further settings: ``KEY=LOW..HIGH``,
            ``KEY=LOW..HIGH:log``, or ``KEY=VALUE,VALUE,...``.

    Raises:
        Refused: One of these is no range or no setting, or nothing is left to be searched.
    """
    method = METHODS[name]
    fields = {**SharedSettings.model_fields, **method.model_fields}
    known = {key_of(field): info for field, info in fields.items()}
    ranges: dict[str, Range | tuple[Scalar, ...]] = {}
    for key in (*method.all_keys(), *_shared(method)):
        declared = searched_range(known[key])
        if declared is not None and key not in fixed:
            ranges[key] = declared
    for text in asked:
        key, within = _parsed(text)
        if key not in known:
            raise Refused(f"--search {brief(text)}: {key} is not a setting{nearest(key, known)}")
        if key in fixed:
            raise Refused(f"--search {brief(text)}: {key} is fixed by --set or --config")
        ranges[key] = _typed(within, known[key].annotation)
    if not ranges:
        raise Refused(
            f"{name} has nothing to search: no setting of its own declares a range, or all are "
            "fixed; give one by --search KEY=LOW..HIGH"
        )
    return tuple(
        Dimension(key, within, known[key].default, known[key].annotation is int)
        for key, within in ranges.items()
    )


def _shared(method: type[Method]) -> list[str]:
    """Returns the shared settings that are searched: none where nothing is fine-tuned."""
    tuned = issubclass(method, LocalMethod) and method.serves == PERSONALIZED
    return [_SHARED] if tuned else []


def _typed(within: Range | tuple[Scalar, ...], kind: Any) -> Range | tuple[Scalar, ...]:
    """Returns values as numbers, where the setting is one."""
    if isinstance(within, Range) or kind not in (int, float):
        return within
    try:
        return tuple(kind(value) for value in within)
    except ValueError:
        return within  # which the experiment refuses, in words


def _parsed(text: str) -> tuple[str, Range | tuple[Scalar, ...]]:
    key, equals, value = (part.strip() for part in text.partition("="))
    words = must("--search", text, "KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=VALUE,VALUE,...")
    if not (key and equals and value):
        raise Refused(words)
    if ".." not in value:
        values = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
        if len(values) < 2 or not all(values):
            raise Refused(words)
        return key, values
    bounds, _, scale = value.partition(":")
    low, _, high = bounds.partition("..")
    try:
        found = Range(float(low), float(high), scale == "log")
    except ValueError as error:
        raise Refused(words) from error
    least = 0.0 if found.log else float("-inf")
    if scale not in ("", "log") or not least < found.low < found.high < float("inf"):
        raise Refused(words + (", with 0 < LOW < HIGH" if found.log else ", with LOW < HIGH"))
    return key, found
