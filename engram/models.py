"""The networks, as functions of a parameter dictionary.

Weights have the shapes that ``torch.nn`` gives them and start as it starts them: uniform on
``+-1/sqrt(fan in)``, drawn from the generator that is passed in and from nothing else.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional

from engram.checks import require
from engram.types import Batch, LossFn, Params

__all__ = ["MODELS", "Model", "build_model", "cross_entropy", "squared_error"]

MODELS = ("mlp", "cnn", "linear")
_CHANNELS = (32, 64)
_KERNEL = 5


class Model(NamedTuple):
    """A network; its outputs are logits of classes, or predicted values.

    Attributes:
        init: ``generator -> params``, float32, on the CPU.
        apply: ``(params, inputs (k, ...)) -> outputs (k, classes)``.
        features: ``(params, inputs (k, ...)) -> (k, width)``: the inputs of the first dense layer;
            None if these are the flattened inputs.
        dense_layers: Number of dense layers, with ReLU in between, at the network's end.
        activations: Number of activations for one example.
        parameters: Number of parameters.
    """

    init: Callable[[Generator], Params]
    apply: Callable[[Params, Tensor], Tensor]
    features: Callable[[Params, Tensor], Tensor] | None
    dense_layers: int
    activations: int
    parameters: int


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
    require(kind in MODELS, "model", kind, f"one of {', '.join(MODELS)}")
    require(outputs >= 1, "number of outputs", outputs, "at least 1")
    require(all(width > 0 for width in hidden), "hidden", tuple(hidden), "positive widths")
    shape = tuple(input_shape)
    if kind == "cnn":
        return _cnn(shape, [*hidden, outputs])
    widths = [outputs] if kind == "linear" else [*hidden, outputs]
    return _dense(math.prod(shape), widths)


def cross_entropy(model: Model) -> LossFn:
    """Builds the mean negative log-likelihood of a batch, in nats."""

    def loss(params: Params, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model.apply(params, inputs), targets)

    return loss


def squared_error(model: Model) -> LossFn:
    """Builds the mean squared error of a batch, over its rows (k) and outputs (k, out)."""

    def loss(params: Params, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(model.apply(params, inputs), targets)

    return loss


def _dense(inputs: int, widths: Sequence[int]) -> Model:
    sizes = [inputs, *widths]

    def init(generator: Generator) -> Params:
        params: Params = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            params |= _layer(f"dense{layer}", (fan_out, fan_in), generator)
        return params

    def apply(params: Params, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in range(len(widths)):
            if layer:
                x = x.relu()
            x = functional.linear(x, params[f"dense{layer}.weight"], params[f"dense{layer}.bias"])
        return x

    return Model(
        init,
        apply,
        None,
        dense_layers=len(widths),
        activations=sum(widths),
        parameters=sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes)),
    )


def _cnn(shape: tuple[int, ...], widths: Sequence[int]) -> Model:
    require(
        len(shape) == 3 and min(shape[1:]) >= 4,
        "input of a cnn",
        shape,
        "(channels, height, width) of at least 4x4 pixels",
    )
    channels, height, width = shape
    head = _dense(_CHANNELS[1] * (height // 4) * (width // 4), widths)

    def init(generator: Generator) -> Params:
        params: Params = {}
        for layer, (fan_in, fan_out) in enumerate(
            [(channels, _CHANNELS[0]), (_CHANNELS[0], _CHANNELS[1])]
        ):
            params |= _layer(f"conv{layer}", (fan_out, fan_in, _KERNEL, _KERNEL), generator)
        return params | head.init(generator)

    def features(params: Params, x: Tensor) -> Tensor:
        for layer in range(len(_CHANNELS)):
            x = functional.conv2d(
                x, params[f"conv{layer}.weight"], params[f"conv{layer}.bias"], padding=_KERNEL // 2
            )
            # The same as pooling after the activation, with a quarter of the work.
            x = functional.max_pool2d(_ChannelsLast.apply(x), 2).relu()  # type: ignore[no-untyped-call]  # torch has no types here
        return x.flatten(1)

    def apply(params: Params, x: Tensor) -> Tensor:
        return head.apply(params, features(params, x))

    maps = (_CHANNELS[0] + _CHANNELS[1] // 4) * height * width  # before pooling
    filters = (channels * _KERNEL**2 + 1) * _CHANNELS[0]
    filters += (_CHANNELS[0] * _KERNEL**2 + 1) * _CHANNELS[1]
    return Model(
        init, apply, features, head.dense_layers, maps + head.activations, filters + head.parameters
    )


class _ChannelsLast(torch.autograd.Function):
    """The identity in channels-last memory layout, in which CPUs pool 13 times as fast.

    Under vmap, where grouped convolutions do not have this layout, it is a plain copy.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        del info
        return x.clone(), in_dims[0]


def _layer(name: str, shape: tuple[int, ...], generator: Generator) -> Params:
    bound = 1 / math.sqrt(math.prod(shape[1:]))

    def uniform(*size: int) -> Tensor:
        return (2 * torch.rand(*size, generator=generator) - 1) * bound

    return {f"{name}.weight": uniform(*shape), f"{name}.bias": uniform(shape[0])}
