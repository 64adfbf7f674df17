"""What a case found, as plain numbers that a file keeps, and how two such records differ."""

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

FILE = Path(__file__).with_name("numbers.json")
ASIDE = ("ms", "ms-per-round", "seconds", "run")  # times, and the folder: other in every run
DIGEST = "sha256"
_SINGLE = 3e-7  # by which the mean of losses of about 2 may be otherwise in single precision
LONG = 4  # entries that a list of numbers may have to be written out


def plain(found):
    """Returns what JSON writes of it.

    Of an array, and of a long list of numbers, that is its shape, sum, norm, and a digest of its
    bytes; of a dictionary of tensors, such as a model, that of all its entries, sorted by name.
    """
    if isinstance(found, Mapping):
        if found and all(isinstance(value, torch.Tensor) for value in found.values()):
            entries = [found[name].flatten().double() for name in sorted(found)]
            return _array(torch.cat(entries).numpy())
        return {str(k): plain(v) for k, v in found.items() if k not in ASIDE}
    if isinstance(found, np.ndarray | np.generic):
        return _array(found) if found.ndim else found.item()
    if isinstance(found, list | tuple):
        if len(found) > LONG and all(isinstance(v, float | int | None) for v in found):
            return _array(np.array(found, dtype=np.float64))
        return [plain(value) for value in found]
    return found


def _array(array):
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return {
        "shape": list(array.shape),
        "finite": len(finite),
        "sum": float(finite.sum()),
        "norm": float(np.sqrt(np.square(finite).sum())),
        DIGEST: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16],
    }


def differences(recorded, found, *, tolerance=None, where=""):
    """Yields what was found otherwise than it is recorded; there may be more in it by now.

    A number may be otherwise by ``tolerance``, relative and absolute; None for not a bit of it.
    """
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        for key in recorded.keys() - (set() if tolerance is None else {DIGEST}):
            if key in found:
                inside, allowed = f"{where}.{key}", tolerance
                if tolerance is not None and key.endswith("-std"):  # of numbers that almost agree
                    allowed = tolerance[0], max(tolerance[1], _SINGLE)
                yield from differences(recorded[key], found[key], tolerance=allowed, where=inside)
            else:
                yield f"{where}.{key} is missing"
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for i, (a, b) in enumerate(zip(recorded, found, strict=True)):
            yield from differences(a, b, tolerance=tolerance, where=f"{where}[{i}]")
    elif not _same(recorded, found, tolerance):
        yield f"{where} was {recorded!r}, and is {found!r}"


def _same(one, other, tolerance):
    numbers = all(isinstance(v, float | int) and not isinstance(v, bool) for v in (one, other))
    if tolerance is None or not numbers:
        return one == other
    relative, absolute = tolerance
    return math.isclose(one, other, rel_tol=relative, abs_tol=absolute)


def machine():
    """Returns what the last bit of a sum depends on: the processor and the libraries."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if platform.system() == "Linux" else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    processor = names[0] if names else platform.processor()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{processor}; {capability}; torch {torch.__version__}; numpy {np.__version__}"


def read():
    """Returns what is recorded: the machine, and the numbers by case."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(recorded):
    """Replaces what is recorded."""
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(found, allow_nan=False)}"
        for name, found in sorted(recorded["cases"].items())
    )
    text = (
        f'{{\n  "machine": {json.dumps(recorded["machine"])},\n  "cases": {{\n{lines}\n  }}\n}}\n'
    )
    FILE.write_text(text, encoding="utf-8")
