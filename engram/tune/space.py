"""Search space of a method: its settings that are searched, and their ranges."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from engram.core.checks import must
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused, brief
from engram.settings.families import METHODS, Method
from engram.settings.fields import Range, Scalar, key_of, nearest, searched_range, wrong_values
from engram.settings.model_and_evaluation import ModelSettings
from engram.settings.network import NetworkMethod
from engram.settings.protection import ProtectionSettings
from engram.settings.training import TrainingSettings

ADAPT_LR: Final = "adapt-lr"
"""The step size of fine-tuning."""

_FINE_TUNING: Final = SharedSettings.model_fields["adapt_lr"]
_STEPS: Final = 7  # of these sizes that are tried where models are fine-tuned beside the method
_FREE: Final = {
    *ModelSettings.all_keys(),
    *TrainingSettings.all_keys(),
    *ProtectionSettings.all_keys(),
    *(ADAPT_LR, "adapt-steps"),
} - {"task", "privacy"}
"""Shared settings that trials may differ in: what is trained and fine-tuned, and how.

In all others they are alike, so that they can be compared: in data, rounds, seeds, in what is
evaluated, and where.
"""


Within = Range | tuple[Scalar, ...]


class Dimension(NamedTuple):
    """Where a setting is searched.

    Attributes:
        key: The setting.
        within: A range, or the values that it may have.
        default: Where the search begins.
        whole: Whether it is a whole number.
    """

    key: str
    within: Within
    default: Scalar
    whole: bool = False

    @property
    def range(self) -> Range | None:
        """The range; None where it is searched among values."""
        return self.within if isinstance(self.within, Range) else None

    @property
    def choices(self) -> tuple[Scalar, ...]:
        """The values that it is searched among; none where it has a range."""
        return () if isinstance(self.within, Range) else self.within


Space = tuple[Dimension, ...]


def space_of(name: str, fixed: Mapping[str, Any], asked: Sequence[str] = ()) -> Space:
    """Returns the settings of a method that are searched.

    These are those of ``declared_ranges`` that are not fixed, and those that are asked for.

    Args:
        name: The method.
        fixed: Settings by key, the method's own without its name.
        asked: Ranges in place of the declared ones, and further settings: ``KEY=LOW..HIGH``,
            ``KEY=LOW..HIGH:log``, or ``KEY=VALUE,VALUE,...``.

    Raises:
        Refused: One of these is no range, no setting, one in which all trials must be alike, or has
            a value that is impossible; or nothing is left to be searched.
    """
    method = METHODS[name]
    fields = {**SharedSettings.model_fields, **method.model_fields}
    known = {key_of(field): info for field, info in fields.items()}
    declared = declared_ranges(method)
    ranges: dict[str, Within] = {k: found for k, found in declared.items() if k not in fixed}
    for text in asked:
        key, within = _parsed(text)
        if wrong := _not_searched(key, within, method, known, fixed):
            raise Refused(f"search {brief(text)}: {wrong}")
        try:
            ranges[key] = _typed(key, within, method)
        except ValidationError as error:
            owner = f"{name}." if key in method.all_keys() else ""
            wrong = "; ".join(fault.text for fault in wrong_values(error, owner))
            raise Refused(f"search {brief(text)}: {wrong}") from error
    if not ranges:
        raise Refused(
            f"{name} has nothing to be tuned: no setting of its own declares a range, or all that "
            "do are fixed; leave one free, or search another by search"
        )
    return tuple(
        Dimension(key, within, known[key].default, known[key].annotation is int)
        for key, within in ranges.items()
    )


def declared_ranges(method: type[Method]) -> dict[str, Range]:
    """Ranges that are searched by default, by key.

    These are the method's own settings that declare a range, and the step size of fine-tuning if it
    serves clients by fine-tuned models.
    """
    fields = {key_of(field): info for field, info in method.model_fields.items()}
    if issubclass(method, NetworkMethod) and method.tuned:
        fields[ADAPT_LR] = _FINE_TUNING
    found = {key: searched_range(field) for key, field in fields.items()}
    return {key: declared for key, declared in found.items() if declared is not None}


def fine_tuning_steps() -> list[float]:
    """Returns step sizes of fine-tuning over their range."""
    within = searched_range(_FINE_TUNING)
    if within is None:
        return []
    ratio = (within.high / within.low) ** (1 / (_STEPS - 1))
    return [float(f"{within.low * ratio**step:.4g}") for step in range(_STEPS)]


def _not_searched(
    key: str,
    within: Within,
    method: type[Method],
    known: Mapping[str, FieldInfo],
    fixed: Mapping[str, Any],
) -> str:
    """Returns why a setting cannot be searched there; "" if it can."""
    if key not in known:
        return f"{key} is not a setting{nearest(key, known)}"
    if key not in method.all_keys() and key not in _FREE:
        return (
            f"all trials must have the same {key}, to be compared with each other; what can be "
            "searched are the method's own settings, and those of the network, of training, "
            "protection and fine-tuning"
        )
    if key in fixed:
        return f"{key} is fixed"
    if isinstance(within, Range) and known[key].annotation not in (int, float):
        return f"{key} is no number: give {key}=VALUE,VALUE"
    return ""


def _typed(key: str, within: Within, method: type[Method]) -> Within:
    """Returns values, or a range's ends, as the setting has them; or raises ValidationError."""
    owner = method if key in method.all_keys() else SharedSettings

    def typed(value: Any) -> Any:
        return owner.model_validate({key: value}).model_dump(by_alias=True)[key]

    if isinstance(within, Range):
        return Range(typed(within.low), typed(within.high), within.log)
    return tuple(map(typed, within))


def _parsed(text: str) -> tuple[str, Within]:
    key, equals, value = (part.strip() for part in text.partition("="))
    words = must("search", text, "KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=VALUE,VALUE,...")
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
