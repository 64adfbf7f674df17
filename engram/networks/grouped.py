"""Many convolutional networks at once: their convolutions as one, grouped by network.

Under ``torch.func.vmap``, too, convolutions with other filters for each network become a grouped
one, but every layer reads and writes copies in another order. Here images stay in the order that
grouped convolutions want, through all of a module's forward pass: it is called with ``Images`` in
place of a tensor, and with parameters that have a leading axis of networks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

_Pair = int | Sequence[int]


class _Many:
    """A tensor of each of c networks.

    What has no rule here raises NotImplementedError.

    Args:
        x: All of them.
        c: Number of networks.
        rectify: Whether a ReLU is still to come. Max pooling goes before it, which gives the same
            and leaves less to do.
    """

    def __init__(self, x: Tensor, c: int, *, rectify: bool = False) -> None:
        self._x, self.c, self._rectify = x, c, rectify

    @property
    def x(self) -> Tensor:
        """All of them."""
        if self._rectify:
            self._x, self._rectify = self._x.relu(), False
        return self._x

    @property
    def shape(self) -> torch.Size:
        """The shape of each network's."""
        raise NotImplementedError

    def size(self, axis: int | None = None) -> Any:
        """See ``torch.Tensor.size``."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """See ``torch.Tensor.dim``."""
        return len(self.shape)

    def relu(self) -> Any:
        """See ``torch.relu``."""
        return type(self)(self.x, self.c, rectify=True)

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        return partial(_rule(getattr(torch.Tensor, name, name)), self)

    def __add__(self, other: Any) -> Any:
        if type(other) is not type(self) or other.shape != self.shape:
            raise NotImplementedError("a sum of unlike tensors")
        return type(self)(self.x + other.x, self.c)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls the rule of a function of torch's."""
        del types
        return _rule(func)(*args, **(kwargs or {}))


class Images(_Many):
    """Images (k, channels, height, width) of each network: ``x`` is (k, c * channels, ...)."""

    @classmethod
    def of(cls, inputs: Tensor) -> "Images":
        """Returns the images of inputs (c, k, channels, height, width)."""
        c, k = inputs.shape[:2]
        return cls(inputs.transpose(0, 1).reshape(k, -1, *inputs.shape[3:]), c)

    @property
    def shape(self) -> torch.Size:
        """The shape of each network's."""
        k, channels, *pixels = self._x.shape
        return torch.Size((k, channels // self.c, *pixels))


class Features(_Many):
    """Features (k, width) of each network: ``x`` is (c, k, width)."""

    @property
    def shape(self) -> torch.Size:
        """The shape of each network's."""
        return self._x.shape[1:]


# --- Rules ---------------------------------------------------------------------------------------


def _rule(function: Any) -> Callable[..., Any]:
    rule = _RULES.get(function)
    if rule is None:
        raise NotImplementedError(getattr(function, "__name__", function))
    return rule


def _joined(leaf: Tensor | None, axes: int, c: int) -> Tensor | None:
    """Returns a parameter (c, n, ...) of all networks as (c * n, ...); a constant is everyone's."""
    if leaf is None:
        return None
    return (leaf if leaf.ndim > axes else leaf.expand(c, *leaf.shape)).flatten(0, 1)


def _convolution(
    images: Images,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Pair = 1,
    padding: str | _Pair = 0,
    dilation: _Pair = 1,
    groups: int = 1,
) -> Images:
    c = images.c
    filters: Any = _joined(weight, 4, c)
    biases = _joined(bias, 1, c)
    return Images(
        functional.conv2d(images.x, filters, biases, stride, padding, dilation, groups * c), c
    )


def _group_norm(
    images: Images,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Images:
    c = images.c
    scales, shifts = _joined(weight, 1, c), _joined(bias, 1, c)
    return Images(functional.group_norm(images.x, num_groups * c, scales, shifts, eps), c)


def _batch_norm(
    images: Images,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Images:
    if not isinstance(images, Images):
        raise NotImplementedError("batch norm of features")
    c = images.c
    mean, var, scales, shifts = (
        _joined(leaf, 1, c) for leaf in (running_mean, running_var, weight, bias)
    )
    found = functional.batch_norm(images.x, mean, var, scales, shifts, training, momentum, eps)
    return Images(found, c)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        # In this order of pixels CPUs pool four times as fast.
        last = x.contiguous(memory_format=torch.channels_last)
        best, at = functional.max_pool2d_with_indices(last, *options)
        return best.contiguous(), at.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])
        ctx.options = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        x, at = ctx.saved_tensors
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return backward(gradients[0].contiguous(), x, *ctx.options, at), None


def _max_pool(images: Images, *args: Any, return_indices: bool = False, **options: Any) -> Images:
    if return_indices:
        raise NotImplementedError("indices of max pooling")
    found = _window(*args, **options)
    best, _ = _MaxPool.apply(images._x, found)  # type: ignore[no-untyped-call]  # torch's
    return Images(best, images.c, rectify=images._rectify)


def _window(
    kernel_size: _Pair,
    stride: _Pair | None = None,
    padding: _Pair = 0,
    dilation: _Pair = 1,
    ceil_mode: bool = False,
) -> tuple[Any, ...]:
    return *map(_pair, (kernel_size, stride or kernel_size, padding, dilation)), ceil_mode


def _pair(value: _Pair) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _pool(function: Callable[..., Tensor]) -> Callable[..., Images]:
    return lambda images, *args, **options: Images(function(images.x, *args, **options), images.c)


def _features(images: Images, x: Tensor) -> Features:
    return Features(x.reshape(len(x), images.c, -1).transpose(0, 1), images.c)


def _flatten(value: _Many, start_dim: int = 0, end_dim: int = -1) -> _Many:
    if start_dim != 1 or end_dim not in (-1, value.dim() - 1):
        raise NotImplementedError("flattening otherwise than from axis 1")
    return _features(value, value.x) if isinstance(value, Images) else value


def _view(value: _Many, *shape: Any) -> _Many:
    wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if tuple(wanted) not in ((len(value), -1), (len(value), value.shape[1:].numel())):
        raise NotImplementedError("another shape than that of features")
    return _flatten(value, 1)


def _mean(images: Images, dim: Iterable[int] = (), keepdim: bool = False) -> _Many:
    if {axis % 4 for axis in dim} != {2, 3} or not isinstance(images, Images):
        raise NotImplementedError("a mean over other axes than pixels")
    found = images.x.mean((2, 3), keepdim)
    return Images(found, images.c) if keepdim else _features(images, found)


def _linear(features: Features, weight: Tensor, bias: Tensor | None = None) -> Features:
    if not isinstance(features, Features):
        raise NotImplementedError("a dense layer of images")
    x = features.x @ weight.mT
    if bias is not None:
        x = x + (bias[:, None] if bias.ndim > 1 else bias)
    return Features(x, features.c)


def _each(function: Callable[..., Tensor]) -> Callable[..., _Many]:
    def rule(value: _Many, *args: Any, inplace: bool = False, **options: Any) -> _Many:
        del inplace
        return type(value)(function(value.x, *args, **options), value.c)

    return rule


def _relu(value: _Many, inplace: bool = False) -> Any:
    del inplace
    return value.relu()


_RULES: Final[dict[Any, Callable[..., Any]]] = {
    functional.conv2d: _convolution,
    functional.group_norm: _group_norm,
    functional.batch_norm: _batch_norm,
    functional.max_pool2d: _max_pool,
    functional.linear: _linear,
    functional.relu: _relu,
    torch.relu: _relu,
    torch.add: lambda one, other: one + other,
    torch.flatten: _flatten,
    torch.Tensor.flatten: _flatten,
    torch.Tensor.view: _view,
    torch.Tensor.reshape: _view,
    torch.mean: _mean,
    torch.Tensor.mean: _mean,
    **{f: _pool(f) for f in (functional.avg_pool2d, functional.adaptive_avg_pool2d)},
    **{
        f: _each(f)
        for f in (
            *(torch.tanh, torch.Tensor.tanh, torch.sigmoid, torch.Tensor.sigmoid),
            *(functional.gelu, functional.silu, functional.elu, functional.leaky_relu),
        )
    },
}
