"""A class for each method: ``engram.strategies.Ditto(net, lambda_=1.0)``.

Editors and type checkers read their signatures in ``__init__.pyi``, which docs/tools/strategies.py
writes.
"""

from inspect import Parameter, Signature, signature
from typing import Any, Final

from engram.core.checks import must
from engram.flower.messages import settings_of
from engram.settings.errors import Refused
from engram.settings.families import METHODS
from engram.settings.fields import closest
from engram.strategies.flower_strategy import FEDAVG, MethodStrategy

NAMES: Final = (
    *("APFL", "CFL", "Ditto", "FedALA", "FedAMP", "FedAS", "FedAdagrad", "FedAdam", "FedAlt"),
    *("FedAvg", "FedAvgM", "FedBABU", "FedBN", "FedDBE", "FedDyn", "FedEM", "FedFomo", "FedLC"),
    *("FedNova", "FedPAC", "FedPer", "FedProto", "FedProx", "FedRep", "FedRoD", "FedYogi", "Floco"),
    *("GPFL", "IFCA", "KNNPer", "LGFedAvg", "Local", "LocalMOML", "MOON", "MRMTL", "PFedHN"),
    *("PFedMe", "PerFedAvg", "Scaffold"),
)
"""Names of the classes: the methods' names in their papers' capitals."""

_METHODS: Final = {name.replace("-", ""): name for name in METHODS}


def class_of(name: str) -> type[MethodStrategy]:
    """Returns the class of this name.

    Raises:
        AttributeError: There is none.
    """
    if name not in NAMES:
        like = closest(name, NAMES)
        words = f" (did you mean {like[0]}?)" if like else ""
        raise AttributeError(f"module 'engram.strategies' has no attribute {name!r}{words}")
    method = _METHODS[name.lower()]
    about = METHODS[method]
    fields, [net, _, *options, _] = (
        about.model_fields,
        signature(MethodStrategy).parameters.values(),
    )
    own = [
        Parameter(n, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
        for n, field in fields.items()
    ]
    flowers = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in FEDAVG.values()]
    known = [p.name for p in (*own, *options, *flowers)]

    def init(self: MethodStrategy, net: Any, **given: Any) -> None:
        if unknown := [key for key in given if key not in known]:
            like = closest(unknown[0], known)
            expected = f"an argument of {name}" + (f", such as {like[0]}" if like else "")
            raise Refused(must("argument", unknown[0], expected))
        settings = settings_of(method, {n: x for n, x in given.items() if n in fields})
        MethodStrategy.__init__(
            self, net, settings, **{n: x for n, x in given.items() if n not in fields}
        )

    meanings = [f"{n}: {field.description}." for n, field in fields.items()]
    doc = "\n    ".join([f"{about.meaning}. {about.source}.\n", *meanings])
    body = {"__init__": init, "__module__": "engram.strategies", "__doc__": doc}
    made = type(name, (MethodStrategy,), body)
    # ``inspect`` reads it, and types do not declare it.
    made.__signature__ = Signature([net, *own, *options, *flowers])  # type: ignore[attr-defined]
    return made
