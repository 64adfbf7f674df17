"""Classes as users have them, text, truth values, any numbers or one-hot rows, as 0, 1, ..."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from engram.data.image_axes import say_once
from engram.data.lazy import Place
from engram.data.schema.columns import Column
from engram.data.schema.declared import declaring, fault_of_values
from engram.scoring.tasks import CLASSIFICATION, REGRESSION
from engram.settings.errors import DataError, few_names

_Array = npt.NDArray[Any]
_MOST: Final = 100  # numbers other than 0, 1, ... that are taken for classes, of two rows each
_FEW: Final = 20  # whole numbers that may be classes where they are floats
_DIGITS: Final = 10  # numbers 0, 1, ... up to which nobody asks whether they are classes
_OTHERS: Final = "other nodes may hold others: declare them for the run, as {}"


class Classes(NamedTuple):
    """Classes of rows.

    Attributes:
        numbers: The number of each row's class, (n,), int64; or of its several ones, (n, ...).
        outputs: How many classes there are.
        names: What they are called; empty where their numbers are their names.
    """

    numbers: npt.NDArray[np.int64]
    outputs: int
    names: tuple[str, ...] = ()


def is_text(array: _Array) -> bool:
    """Whether an array is text, of any of the types that NumPy has for it."""
    return array.dtype.kind in "USOT"


def classes_of(
    place: Place,
    y: _Array,
    *,
    column: Column,
    alone: bool = False,
    num_classes: int = 0,
    names: _Array | None = None,
) -> Classes:
    """Returns the classes of all clients' rows.

    Numbers from 0 without gaps, or below ``num_classes``, are classes themselves, and so are those
    of declared classes of which none is a number. Otherwise classes are numbered in the order in
    which they are declared or, if they are not, in their own.

    Whole numbers of three axes or more, such as masks, stay as they are: which of them a loss
    ignores is for it to say.

    Args:
        place: What messages call the targets.
        y: The targets: (n,) or (n, 1), or one-hot rows (n, k); or several classes a row, (n, ...).
        column: Their column, with the classes that are declared.
        alone: Whether rows are one client's, and others may hold other classes.
        num_classes: How many there are; 0 for as many as are in ``y`` or declared.
        names: As ``CLASSES``, where the reader knows them.

    Raises:
        DataError: If they are no classes, or not those; or rows are one client's, and others may
            number them otherwise.
    """
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    known = () if column.kind == "truth" else column.values
    y, called = _named(place, y, names, known)
    if y.ndim > 2 and y.size and y.dtype.kind in "buif":
        found = Classes(_whole(place, y).astype(np.int64), max(2, int(y.max()) + 1), known)
        return found._replace(outputs=num_classes or len(known) or found.outputs)
    if y.ndim == 2 and not is_text(y):
        if known and len(known) != y.shape[1]:
            raise place.fault(f"{len(known)} columns (values)", f"shape {y.shape}")
        found = Classes(_hot(place, y), y.shape[1], known)
    elif y.ndim != 1 or not y.size or not (is_text(y) or y.dtype.kind in "buif"):
        raise place.fault("one class a row", f"{y.dtype} of shape {y.shape}")
    elif called is not None:
        found = Classes(_places(place, y, called), len(called), tuple(map(str, called.tolist())))
    elif known and not is_text(y) and y.dtype.kind != "b" and not any(map(is_whole, known)):
        found = _numbers(place, _whole(place, y), column, alone, len(known))
        found = found._replace(names=known)
    elif is_text(y) or known:
        text = (y if is_text(y) else _whole(place, y)).astype(str)
        found = _texts(place, text, column, alone=alone)
    else:
        found = _numbers(place, _whole(place, y), column, alone, num_classes)
    if num_classes and found.outputs > num_classes:
        raise place.fault(f"of {num_classes} classes (num-classes)", f"{found.outputs}")
    if found.outputs < 2:
        raise DataError(f"{place.path}: {place.name} must hold at least 2 classes, got one")
    more = map(str, range(len(found.names), num_classes if found.names else 0))
    return found._replace(outputs=num_classes or found.outputs, names=(*found.names, *more))


def is_whole(name: str) -> bool:
    """Whether a class's name is a whole number."""
    return name.removeprefix("-").isdecimal()


def _named(
    place: Place, y: _Array, names: _Array | None, known: Sequence[str]
) -> tuple[_Array, _Array | None]:
    """One class a row, and names that its reader knows; declared ones go first."""
    if y.ndim != 1 or (known and names is None):
        return y, None
    if names is None:
        return (y.astype(np.int64), np.array(["False", "True"])) if y.dtype == bool else (y, None)
    if not known:
        return y, names
    all_declared = {*map(str, names.tolist())} <= {*known}
    return (names[_places(place, y, names)].astype(str) if all_declared else y), None


def _texts(place: Place, text: _Array, column: Column, *, alone: bool) -> Classes:
    known = () if column.kind == "truth" else column.values
    expected = f"one of {few_names(known)} (values)" if known else "one class a row"
    if (strange := ~np.isin(text, known) if known else text == "").any():
        raise place.fault(expected, place.first(text, strange))
    held, numbers = np.unique(text, return_inverse=True)
    own = known or tuple(held.tolist())
    if wrong := "" if known else fault_of_values(column, own, alone=alone):
        raise DataError(f"{place.path}: {wrong}")
    if not (known or column.kind) and len({folded(name.strip()) for name in own}) < len(own):
        say_once(
            f"{place.path}: some classes of {place.name} differ in case, blanks or the like alone: "
            f"{few_names(own)}"
        )
    order = np.array([own.index(name) for name in held.tolist()], dtype=np.int64)
    return Classes(order[numbers], len(own), own)


def _places(place: Place, y: _Array, names: _Array) -> npt.NDArray[np.int64]:
    if is_text(names) and not is_text(y):
        numbers = _whole(place, y).astype(np.int64)
        if (strange := (numbers < 0) | (numbers >= len(names))).any():
            raise place.fault(f"numbers of {len(names)} classes", place.first(y, strange))
        return numbers
    order = np.argsort(names)
    return np.asarray(order[np.searchsorted(names, y, sorter=order)], dtype=np.int64)


def _whole(place: Place, y: _Array) -> _Array:
    if y.dtype.kind != "f":
        return y
    if (strange := ~np.isfinite(y) | (y != np.round(y))).any():
        lacking = np.isnan(y).any()
        advice = "a row needs one" if lacking else "set task=regression for numbers"
        first = place.first(y, np.isnan(y) if lacking else strange)
        raise place.fault("one class a row", f"{y.dtype}, {first}: {advice}")
    return y.astype(np.int64)


def _hot(place: Place, y: _Array) -> npt.NDArray[np.int64]:
    if y.dtype.kind not in "buif" or not len(y):
        raise place.fault("one class a row", f"{y.dtype} of shape {y.shape}")
    if (strange := ~np.isin(y, (0, 1))).any():
        first = f"shape {y.shape} with {place.first(y, strange)}"
        advice = "set task=regression for numbers, or task=next-token for tokens"
        raise place.fault("one class a row", f"{first}: {advice}")
    counts = y.sum(axis=1)
    if (strange := counts != 1).any():
        ones = f"a sum of {place.first(counts, strange)}"
        raise place.fault("one class a row", f"{ones}: set task=multi-label if rows have several")
    return np.asarray(y.argmax(axis=1))


def _numbers(place: Place, y: _Array, column: Column, others: bool, num_classes: int) -> Classes:
    if num_classes:
        if (strange := (y < 0) | (y >= num_classes)).any():
            raise place.fault(
                f"classes 0 to {num_classes - 1} (num-classes is {num_classes})",
                f"{place.first(y, strange)}: leave num-classes out, or declare the classes, as "
                f"{declaring(column.name)}",
            )
        return Classes(y.astype(np.int64), num_classes)
    held = np.unique(y)
    gaps, shown = held[-1] - held[0] >= len(held), few_names(held.tolist())
    if held[0] == 0 and not gaps:
        found = Classes(y.astype(np.int64), len(held))
    elif others:
        got = f"{shown}: {_OTHERS.format(declaring(column.name))}"
        raise place.fault("classes numbered from 0 without gaps", got)
    elif len(held) > (most := min(_MOST, len(y) // 2)):
        raise place.fault(
            f"of at most {most} classes, unless these are numbered from 0",
            f"{len(held)} different numbers: set task=regression for numbers, or declare the "
            f"classes, as {declaring(column.name)}",
        )
    else:
        found = Classes(np.searchsorted(held, y), len(held), tuple(map(str, held.tolist())))
    if column.kind != "category" and len(held) > (2 if gaps else _DIGITS):
        say_once(
            f"{place.path}: {column.name}: {len(held)} different whole numbers from {held[0]} to "
            f"{held[-1]} are taken for classes; task=regression predicts numbers"
        )
    return found


def likely_task(y: _Array) -> str:
    """Returns the task of targets, (n,) or (n, ...), where nobody has said it.

    Raises:
        DataError: If they may be targets of several tasks.
    """
    if y.ndim == 2 and y.shape[1] > 1 and not is_text(y) and np.isin(y, (0, 1)).all():
        raise DataError(
            f"y has {y.shape[1]} zeros and ones a row: set task=classification (one-hot classes), "
            "task=multi-label or task=regression"
        )
    if y.dtype.kind != "f":
        return CLASSIFICATION.name
    flat = y.reshape(len(y), -1)
    held = np.unique(flat[:, 0])
    repeated = 2 * len(held) <= len(y) and len(held) <= _FEW
    if flat.shape[1] == 1 and repeated and (held == np.round(held)).all():
        raise DataError(
            f"y has few whole numbers, as floats ({few_names(f'{v:g}' for v in held)}): set "
            "task=classification or task=regression"
        )
    return REGRESSION.name


def folded(text: str) -> str:
    """Returns a text folded in case and in Unicode's form."""
    return normalize("NFKC", text).casefold()
