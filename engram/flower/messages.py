"""Messages between a strategy and clients with a loop of their own.

A slot travels as an ArrayRecord of its name; the slot ``model`` as Flower's ``arrays``.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from flwr.app import ArrayRecord, RecordDict
from pydantic import ValidationError

from engram.core.checks import must
from engram.settings.errors import Refused
from engram.settings.families import METHODS
from engram.settings.fields import wrong_values
from engram.wire.flower import to_params, to_record
from engram.wire.wire import ARRAYS

ENGRAM: Final = "engram"
START: Final = "engram-start"  # models that clients begin with, for those without a memory
CONSTANT: Final = "engram-constant"  # what a state dict has beside the trained arrays
_MODEL: Final = "model"
_TENSOR: Final = "."  # name of the only array of a slot that is one tensor


class MethodRecord(NamedTuple):
    """A strategy's method: the ConfigRecord ``engram`` of a message.

    Attributes:
        method: The method's name.
        settings: Its settings, as JSON.
        outputs: Number of classes, or of values.
        personal: Patterns of the parameters that clients keep; "" for the method's own.
        round: The round, >= 1.
        training: Identity of the training, which lasts when a strategy is resumed.
        names: Names of the network's arrays, in order.
        shapes: Their shapes, as numbers with commas.
        running: Those of them that are running statistics.
    """

    method: str
    settings: str
    outputs: int
    personal: str
    round: int
    training: str
    names: list[str]
    shapes: list[str]
    running: list[str]

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """Reads the record of a message.

        Raises:
            Refused: The message is of another strategy.
        """
        if ENGRAM not in content:
            expected = "one of engram.strategies, got a message of another one"
            raise Refused(f"the server's strategy must be {expected}")
        record: Any = content.config_records[ENGRAM]
        return cls(*(record[key] for key in cls._fields))

    @property
    def own(self) -> Any:
        """The method's settings, as its dataclass."""
        return settings_of(self.method, json.loads(self.settings))


def settings_of(name: str, given: Mapping[str, Any]) -> Any:
    """Returns a method's settings, as its dataclass.

    Raises:
        Refused: There is no such method or setting, or a value is out of its range.
    """
    cls: Any = METHODS.get(name)
    if not getattr(cls, "trains_network", False):
        raise Refused(must("method", name, "one for networks that `engram methods` lists"))
    try:
        return cls.model_validate(given).settings
    except ValidationError as error:
        raise Refused(*wrong_values(error, f"{name}.")) from error
    except ValueError as error:
        raise Refused(f"{name}: {error}") from error


def key_of(slot: str, arrays_key: str = ARRAYS) -> str:
    """Returns the key of a slot's record in a message."""
    return arrays_key if slot == _MODEL else f"{ENGRAM}.{slot}"


def params_of(slot: Any) -> Any:
    """Returns a slot as parameters: a tensor is the only one of them."""
    return slot if isinstance(slot, dict) else {_TENSOR: slot}


def to_records(slots: Mapping[str, Any], arrays_key: str = ARRAYS) -> dict[str, ArrayRecord]:
    """Returns the records of slots, by their keys in a message."""
    return {key_of(s, arrays_key): to_record(params_of(x)) for s, x in slots.items()}


def from_records(content: RecordDict, arrays_key: str = ARRAYS) -> dict[str, Any]:
    """Undoes ``to_records``."""
    found: dict[str, Any] = {}
    for key, record in content.array_records.items():
        if key == arrays_key or key.startswith(f"{ENGRAM}."):
            params = to_params(record)
            slot = _MODEL if key == arrays_key else key.removeprefix(f"{ENGRAM}.")
            found[slot] = params[_TENSOR] if params.keys() == {_TENSOR} else params
    return found
