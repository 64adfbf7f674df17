"""Networks as functions of a parameter dictionary: built-in ones, and any ``torch.nn.Module``.

Weights of built-in ones have the shapes that ``torch.nn`` gives them and start as it starts them:
uniform on ``+-1/sqrt(fan in)``, drawn from the generator that is passed in and from nothing else.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from engram.core.checks import require
from engram.core.derivatives import vectorized
from engram.core.types import Params
from engram.networks.base import Adapters, Inputs, Model, Statistics, moved
from engram.networks.registry import BUILT_IN, CHARACTERS, FLAT, NETWORKS, TEXTS, is_known, maker

Norm = Literal["batch", "group"]


def network(
    name: str,
    example: Inputs,
    *,
    outputs: int,
    hidden: Sequence[int],
    tokens: int = 0,
    norm: Norm = "batch",
    adapters: Adapters = "shared",
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
        adapters: As for ``with_adapters``.
        statistics: As for ``from_module``.
        generator: Draws a module's constants, as ``Model.init`` draws its parameters.

    Raises:
        ValueError: If there is none of that name, or it does not fit the rows.
    """
    _check(name, example)
    own = maker(name)
    expected = "shared where the network is built in"
    require(own is not None or adapters == "shared", "adapters", adapters, expected)
    if name in FLAT:
        return build_model(name, input_shape=example.shape[1:], outputs=outputs, hidden=hidden)

    from engram.networks.catalogue import (  # noqa: PLC0415 - most runs have one small network
        built_in_module,
        with_adapters,
        with_group_norm,
    )
    from engram.networks.module import from_module  # noqa: PLC0415 - most runs have one small network

    make = built_in_module(name, example, outputs, hidden, tokens) if own is None else own
    make = with_group_norm(make) if norm == "group" else make
    make = make if adapters == "shared" else with_adapters(make, adapters)
    model = from_module(make, example, generator=generator, statistics=statistics)
    return model if own is not None else model._replace(drawn=False)  # they hold no constants


def count_parameters(
    name: str, example: Inputs, *, outputs: int, hidden: Sequence[int], tokens: int = 0
) -> int:
    """Counts the parameters of a built-in network, without allocating them.

    For the arguments, and what is raised, see ``network``. One of ``NETWORKS`` has 0, since only
    who wrote it knows what making it does.
    """
    _check(name, example)
    if maker(name) is not None:
        return 0
    if name in FLAT:
        shape = example.shape[1:]
        return build_model(name, input_shape=shape, outputs=outputs, hidden=hidden).parameters

    from engram.networks.catalogue import built_in_module  # noqa: PLC0415 - most runs have one small network

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


_CHANNELS = (32, 64)
_KERNEL = 5


def build_model(
    kind: str, *, input_shape: Sequence[int], outputs: int, hidden: Sequence[int] = ()
) -> Model:
    """Builds a network.

    Args:
        kind: ``linear`` (softmax regression), ``mlp`` (dense layers with ReLU) or ``cnn``
            (two 5x5 convolutions of 32 and 64 channels, each with ReLU and 2x2 pooling,
            then dense layers).
        input_shape: Shape of one example: (features,) or (channels, height, width).
        outputs: Number of outputs: of classes, or of values to predict; >= 1.
        hidden: Widths of the hidden dense layers of ``mlp`` and ``cnn``.

    Raises:
        ValueError: If the kind is unknown or does not fit the inputs.
    """
    require(kind in FLAT, "model", kind, f"one of {', '.join(FLAT)}")
    require(outputs >= 1, "number of outputs", outputs, "at least 1")
    require(all(width > 0 for width in hidden), "hidden", tuple(hidden), "positive widths")
    shape = tuple(input_shape)
    if kind == "cnn":
        return _cnn(shape, [*hidden, outputs])
    widths = [outputs] if kind == "linear" else [*hidden, outputs]
    return _dense(math.prod(shape), widths)


def _dense(inputs: int, widths: Sequence[int]) -> Model:
    sizes = [inputs, *widths]

    def init(generator: Generator) -> Params:
        params: Params = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            params |= _layer(f"dense{layer}", (fan_out, fan_in), generator)
        return params

    def linear(params: Params, layer: int, x: Tensor) -> Tensor:
        return functional.linear(x, params[f"dense{layer}.weight"], params[f"dense{layer}.bias"])

    def represent(
        params: Params,
        x: Tensor,
        key: Tensor | None = None,
        shift: Tensor | None = None,
        training: bool = False,
    ) -> tuple[Tensor, Tensor]:
        del key, training
        z = x.flatten(1)
        for layer in range(len(widths) - 1):
            z = linear(params, layer, z).relu()
        return linear(params, len(widths) - 1, moved(z, shift)), z

    def apply(params: Params, x: Tensor) -> Tensor:
        return represent(params, x)[0]

    return Model(
        init,
        apply,
        None,
        dense_layers=len(widths),
        activations=sum(widths),
        parameters=sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes)),
        represent=represent,
        width=sizes[-2],
        module=lambda params: _holding(_plain_dense(sizes), params),
    )


def _cnn(shape: tuple[int, ...], widths: Sequence[int]) -> Model:
    expected = "(channels, height, width) of at least 4x4 pixels"
    require(len(shape) == 3 and min(shape[1:]) >= 4, "input of a cnn", shape, expected)
    channels, height, width = shape
    sizes = [_CHANNELS[1] * (height // 4) * (width // 4), *widths]
    head = _dense(sizes[0], widths)

    def init(generator: Generator) -> Params:
        params: Params = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise([channels, *_CHANNELS])):
            params |= _layer(f"conv{layer}", (fan_out, fan_in, _KERNEL, _KERNEL), generator)
        return params | head.init(generator)

    def features(params: Params, x: Tensor) -> Tensor:
        for layer in range(len(_CHANNELS)):
            weight, bias = params[f"conv{layer}.weight"], params[f"conv{layer}.bias"]
            x = functional.conv2d(x, weight, bias, padding=_KERNEL // 2)
            if not vectorized():  # with channels last CPUs pool 13 times as fast
                x = x.contiguous(memory_format=torch.channels_last)
            # The same as pooling after the activation, with a quarter of the work.
            x = functional.max_pool2d(x, 2).relu()
        return x.flatten(1)

    def apply(params: Params, x: Tensor) -> Tensor:
        return head.apply(params, features(params, x))

    def represent(params: Params, x: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        assert head.represent is not None  # for mypy: dense layers have it
        return head.represent(params, features(params, x), *given)

    maps = (_CHANNELS[0] + _CHANNELS[1] // 4) * height * width  # before pooling
    filters = (channels * _KERNEL**2 + 1) * _CHANNELS[0]
    filters += (_CHANNELS[0] * _KERNEL**2 + 1) * _CHANNELS[1]
    return Model(
        init,
        apply,
        features,
        head.dense_layers,
        maps + head.activations,
        filters + head.parameters,
        represent=represent,
        width=head.width,
        module=lambda params: _holding(_plain_cnn(channels, sizes), params),
    )


def _layer(name: str, shape: tuple[int, ...], generator: Generator) -> Params:
    bound = 1 / math.sqrt(math.prod(shape[1:]))

    def uniform(*size: int) -> Tensor:
        return (2 * torch.rand(*size, generator=generator) - 1) * bound

    return {f"{name}.weight": uniform(*shape), f"{name}.bias": uniform(shape[0])}


# --- As plain modules ----------------------------------------------------------------------------


def _plain_dense(sizes: Sequence[int]) -> dict[str, nn.Module]:
    """Returns the layers of ``_dense``, without numbers, by the names that its parameters have."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for layer, size in enumerate(pairwise(sizes)):
        layers |= {f"relu{layer - 1}": nn.ReLU()} if layer else {}
        layers[f"dense{layer}"] = nn.Linear(*size, device="meta")
    return layers


def _plain_cnn(channels: int, sizes: Sequence[int]) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {}
    for layer, size in enumerate(pairwise([channels, *_CHANNELS])):
        layers[f"conv{layer}"] = nn.Conv2d(*size, _KERNEL, padding=_KERNEL // 2, device="meta")
        layers |= {f"pool{layer}": nn.MaxPool2d(2), f"convolved{layer}": nn.ReLU()}
    return layers | _plain_dense(sizes)


def _holding(layers: dict[str, nn.Module], params: Params) -> nn.Module:
    module = nn.Sequential(OrderedDict(layers)).to_empty(device="cpu")
    module.load_state_dict(params)
    return module.eval()
