"""The index of methods: their settings and facts, for those who list them without torch.

``python -m engram.methods`` writes ``index.json``; a test compares it.
"""

import importlib
import json
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from engram.core.contract import Contract, cause_of
from engram.core.method import Client, Context, Network
from engram.core.method_shapes import WITHOUT_DATA, Shapes, shapes_of
from engram.core.personal_parameters import build
from engram.core.settings import METHODS, Search, about, ranges

_FOLDER: Final = Path(__file__).parent
_NOT_METHODS: Final = {"__init__", "__main__", "entries"}
_FIRST: Final = ("local-moml", "per-fedavg")
"""Methods that are listed before all others; a run that names none is of the first."""


def entries() -> dict[str, dict[str, Any]]:
    """Returns the entries of the methods in this package, in their order."""
    for path in sorted(_FOLDER.glob("*.py")):
        if path.stem not in _NOT_METHODS:
            importlib.import_module(f"engram.methods.{path.stem}")
    ours = {n: cls for n, cls in METHODS.items() if cls.__module__.startswith("engram.methods.")}
    names = [*_FIRST, *sorted(ours.keys() - {*_FIRST})]
    return {name: entry_of(ours[name]) for name in names}


def entry_of(cls: Any) -> dict[str, Any]:
    """Returns a method's entry: its description, settings, and facts of its slots.

    Raises:
        SlotFault: The method does not keep its contract.
        ValueError: If it builds no method for a network of two layers and two classes, or one of
            its functions raises an error there.
    """
    try:
        shapes = _probe(cls())
    except ValueError:
        raise
    except Exception as error:  # anybody's method
        name, expected = about(cls).name, "one whose functions run on slots without values"
        why = f"method {name} must be {expected}, got {cause_of(name, error)}"
        raise ValueError(why) from error
    made = shapes.method
    merge, hints = made.server.merge, get_type_hints(cls)
    return {
        "module": cls.__module__,
        "meaning": (cls.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        **about(cls)._asdict(),
        "each": not merge.combines,
        "steps": merge.steps,
        "phases": len(made.client.phases),
        "tuned": shapes.served.tuned,
        "gradients": _by_gradients(made.client),
        "faults": hasattr(cls, "faults"),
        "fields": {name: _field(hints[name], cls, name, notes) for name, notes in ranges(cls)},
    }


def _by_gradients(client: Client) -> bool:
    """Returns whether a client's rows are seen by one gradient a step, and in no other way."""
    phases = client.phases
    plain = all(p.affine and p.one_gradient_per_batch and p.batches == 1 for p in phases)
    return plain and not client.initial_rows


def _field(kind: Any, cls: Any, name: str, notes: tuple[Any, ...]) -> dict[str, Any]:
    limits = {
        key: getattr(note, key)
        for note in notes
        for key in ("gt", "ge", "lt", "le")
        if hasattr(note, key)
    }
    searched = next((tuple(note) for note in notes if isinstance(note, Search)), None)
    choices = get_args(kind) if get_origin(kind) is Literal else None
    return {
        "type": "choice" if choices else getattr(kind, "__name__", str(kind)),
        "default": getattr(cls, name),
        **limits,
        **({"choices": choices} if choices else {}),
        **({"search": searched} if searched else {}),
        "meaning": next((note for note in notes if isinstance(note, str)), ""),
    }


def _probe(settings: Any) -> Shapes:
    """Builds a method for a small network, and holds it to its contract."""
    initial = {
        "0.weight": torch.zeros(2, 2),
        "1.weight": torch.zeros(2),
        "1.running_mean": torch.zeros(2),
        "1.running_var": torch.ones(2),
        "2.weight": torch.zeros(2, 2),
    }

    def represent(w: Any, batch: Any, shift: Any = None) -> tuple[Tensor, Tensor]:
        z = batch[0] @ w["0.weight"]
        return (z if shift is None else z + shift) @ w["2.weight"], z

    running = frozenset({"1.running_mean", "1.running_var"})
    layers = tuple(frozenset(n for n in initial if n[0] == str(i)) for i in range(3))
    network = Network(
        initial, represent, 2, layers, running, frozenset(), lambda count: [initial] * count
    )

    context = Context(network, WITHOUT_DATA, 2, 2, lambda: torch.Generator().manual_seed(0))
    return shapes_of(Contract(about(settings).name, build(settings, context), initial))


def written() -> str:
    """Returns the contents of ``index.json``: a line for each method."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
