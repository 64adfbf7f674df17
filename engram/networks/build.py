"""Networks as functions of a parameter dictionary: built-in ones, and any ``torch.nn.Module``."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from engram.core.checks import require
from engram.networks.base import Inputs, Model, Statistics
from engram.networks.built_in import build_model
from engram.networks.registry import BUILT_IN, CHARACTERS, FLAT, NETWORKS, TEXTS, is_known

Norm = Literal["batch", "group"]


def network(
    name: str,
    example: Inputs,
    *,
    outputs: int,
    hidden: Sequence[int],
    tokens: int = 0,
    norm: Norm = "batch",
    statistics: Statistics,
    generator: Generator,
) -> Model:
    """Builds a network by its name.

    Args:
        name: Of a built-in network, or one of ``NETWORKS``.
        example: Some rows, such as it will see.
        outputs: Number of outputs of a built-in one.
        hidden: Widths of the hidden layers of a built-in one.
        tokens: Number of tokens of a built-in one for texts.
        norm: Whether batch norm is ``batch`` norm, or ``group`` norm takes its place.
        statistics: As for ``from_module``.
        generator: Draws a module's constants, as ``Model.init`` draws its parameters.

    Raises:
        ValueError: If there is none of that name, or it does not fit the rows.
    """
    _check(name, example)
    if name in FLAT:
        return build_model(name, input_shape=example.shape[1:], outputs=outputs, hidden=hidden)

    from engram.networks.catalogue import (  # noqa: PLC0415 - not always needed
        built_in_module,
        with_group_norm,
    )
    from engram.networks.module import from_module  # noqa: PLC0415 - not always needed

    own = name in NETWORKS
    make = NETWORKS[name] if own else built_in_module(name, example, outputs, hidden, tokens)
    make = with_group_norm(make) if norm == "group" else make
    model = from_module(make, example, generator=generator, statistics=statistics)
    return model if own else model._replace(drawn=False)  # they hold no constants


def count_parameters(
    name: str, example: Inputs, *, outputs: int, hidden: Sequence[int], tokens: int = 0
) -> int:
    """Counts the parameters of a built-in network, without allocating them.

    For the arguments, and what is raised, see ``network``. One of ``NETWORKS`` has 0, since only
    who wrote it knows what making it does.
    """
    _check(name, example)
    if name in NETWORKS:
        return 0
    if name in FLAT:
        shape = example.shape[1:]
        return build_model(name, input_shape=shape, outputs=outputs, hidden=hidden).parameters

    from engram.networks.catalogue import built_in_module  # noqa: PLC0415 - not always needed

    make = built_in_module(name, example, outputs, hidden, tokens)
    with torch.device("meta"):
        return sum(leaf.numel() for leaf in make().parameters())


def _check(name: str, example: Inputs) -> None:
    require(is_known(name), "model", name, f"one of {', '.join([*BUILT_IN, *NETWORKS])}")
    if name in BUILT_IN:
        single = isinstance(example, Tensor)
        require(single, "inputs of a built-in network", "several tensors", "one tensor")
    if name in FLAT and isinstance(example, Tensor):
        wanted = f"numbers or images ({', '.join((*TEXTS, *CHARACTERS))} take tokens)"
        require(example.dtype != torch.int64, f"inputs of {name}", "tokens", wanted)
