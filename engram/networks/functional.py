"""Modules as functions: side effects of ``torch.nn`` as arguments and results.

Dropout draws from the process's generator, and batch norm writes its running statistics in place.
Neither is a function of its arguments, so neither gives the same numbers on every engine, and under
``torch.func.vmap`` the one draws alike for all clients and the other fails. Here masks are a
function of a key, and statistics are returned.
"""

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from engram.core.checks import must, require
from engram.core.derivatives import differentiates_twice, vectorized
from engram.networks.base import UnknownToken
from engram.networks.recurrent import KERNELS, recurrent

NORMS: Final = (nn.modules.batchnorm._BatchNorm,)


def decomposes() -> bool:
    """Returns whether fused kernels have no rule: under ``vmap``, or to differentiate twice."""
    return differentiates_twice() or torch._C._functorch.peek_interpreter_stack() is not None


def uniform(key: Tensor, site: int, shape: Iterable[int]) -> Tensor:
    """Returns numbers in [0, 1), 24 bits each, that depend on key and site alone.

    Counters are hashed, so that it runs under ``vmap`` with a key for each client. The hash is
    lowbias32 (Wellons, "Prospecting for Hash Functions", 2018).

    Args:
        key: A whole number, shape ().
        site: Which draw of this key it is.
        shape: The numbers' shape.
    """
    size = torch.Size(shape)
    counter = torch.arange(size.numel(), device=key.device, dtype=torch.int64)
    mixed = _hash(counter ^ _hash(_hash(key & _WORD) + site & _WORD))
    return (mixed >> 8).to(torch.float32).mul(2.0**-24).view(size)


_WORD: Final = 2**32 - 1


def _hash(x: Tensor) -> Tensor:
    """Mixes whole numbers below 2^32, in int64: products stay below 2^63."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _WORD
    x = x ^ (x >> 15)
    x = x * 0x46CA68B5 & _WORD  # an odd number below 2^31
    return x ^ (x >> 16)


class Pure(TorchFunctionMode):
    """Within it, a module's forward pass is a function of its parameters, inputs and a key.

    Args:
        key: Of this pass, shape (); None where nothing is dropped.
        fixed: Whether batch norm uses the running statistics in training, too.
        names: Names of running statistics, by the identity of their tensors.
        drawing: Whether nothing but what draws is replaced.

    Attributes:
        drawn: How often something was dropped.
        pooled: Whether something was pooled.
        viewed: Whether images were viewed in another shape.
        embedded: What went to an embedding, and how many tokens that has.
        statistics: Running statistics after this pass, by name.
    """

    def __init__(
        self,
        key: Tensor | None,
        *,
        fixed: bool = False,
        names: Mapping[int, str] | None = None,
        drawing: bool = False,
    ) -> None:
        super().__init__()
        self._others = _DRAWN if drawing else _OTHERS
        self._key, self._fixed, self._names = key, fixed, names
        self.drawn, self.pooled, self.viewed = 0, False, False
        self.embedded: list[tuple[Tensor, int]] = []
        self.statistics: dict[str, Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function's replacement, or the function itself if it has none."""
        del types
        other = self._others.get(func)
        if other is None:
            return func(*args, **(kwargs or {}))
        return other(self, *args, **(kwargs or {}))

    # --- Dropout ----------------------------------------------------------------------------

    def _dropped(self, x: Tensor, shape: Iterable[int], p: float) -> Tensor:
        """Zeroes entries of x, by a mask of the given shape, with probability p > 0."""
        if self._key is None:
            raise ValueError("dropout in training needs a key")
        self.drawn += 1
        kept = uniform(self._key, self.drawn, shape) >= p
        return torch.where(kept, x / (1 - p), 0.0) if p < 1 else x * 0.0

    def dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """See ``torch.nn.functional.dropout``."""
        del inplace
        return self._dropped(x, x.shape, p) if training and p > 0 else x

    def channels(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Drops whole channels, as ``dropout1d``, ``dropout2d`` and ``dropout3d``."""
        del inplace
        shape = (*x.shape[:2], *[1] * (x.ndim - 2))
        return self._dropped(x, shape, p) if training and p > 0 else x

    def attention(
        self,
        query: Tensor,
        keys: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """See ``torch.nn.functional.scaled_dot_product_attention``, in plain operations.

        Its fused kernels have no rule for ``vmap``.
        """
        if not decomposes() and dropout_p == 0:
            return functional.scaled_dot_product_attention(
                query, keys, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            repeats = query.shape[-3] // keys.shape[-3]
            keys, value = (x.repeat_interleave(repeats, -3) for x in (keys, value))
        scores = query @ keys.mT * (scale if scale is not None else query.shape[-1] ** -0.5)
        if is_causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self.dropout(scores.softmax(-1), dropout_p, dropout_p > 0) @ value

    def heads(self, *args: Any, **kwargs: Any) -> Any:
        """See ``torch.nn.functional.multi_head_attention_forward``."""
        with self:
            return _heads(*args, **kwargs)

    # --- Batch norm -------------------------------------------------------------------------

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """See ``torch.nn.functional.batch_norm``; notes the statistics and writes nothing."""
        training = training and not self._fixed
        # Without gradients: they are no parameters, though they travel with them.
        found = [s.detach() for s in (running_mean, running_var) if s is not None]
        if training and self._names is not None:
            found = [s.clone() for s in found]  # torch writes into them
            for old, new in zip((running_mean, running_var), found, strict=False):
                self.statistics[self._names[id(old)]] = new
        elif training:
            found = []
        mean_, var_ = found or (None, None)
        return functional.batch_norm(x, mean_, var_, weight, bias, training, momentum, eps)

    def group_norm(
        self,
        x: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """See ``torch.nn.functional.group_norm``; under ``vmap``, in plain operations.

        Its kernel asks how images lie in memory, which ``vmap`` does not tell.
        """
        if not decomposes() or not isinstance(x, Tensor):
            return functional.group_norm(x, num_groups, weight, bias, eps)
        groups = x.reshape(len(x), num_groups, -1)
        gaps = groups - groups.mean(-1, keepdim=True)
        found = (gaps * (gaps.square().mean(-1, keepdim=True) + eps).rsqrt()).reshape(x.shape)
        shape = [-1, *[1] * (x.ndim - 2)]  # of a number for each channel
        if weight is not None:
            found = found * weight.reshape(shape)
        return found if bias is None else found + bias.reshape(shape)

    def weight_norm(self, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
        """See ``torch.nn.utils.parametrizations.weight_norm``; ``vmap`` has no rule for it."""
        if not decomposes():
            return torch._weight_norm(v, g, dim)
        axes = [axis for axis in range(v.ndim) if axis != dim]  # with -1 it is of all
        return v * (g / v.square().sum(axes, keepdim=True).sqrt())

    # --- Embeddings ------------------------------------------------------------------------

    def embedding_bag(self, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """See ``torch.nn.functional.embedding_bag``."""
        _refuse_max_norm(args, kwargs)
        return functional.embedding_bag(x, weight, *args, **kwargs)

    def embedding(self, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """See ``torch.nn.functional.embedding``; NaN for unknown tokens, under ``vmap``.

        There the embeddings of several clients are stacked: it would be in the next one.
        """
        if not decomposes():
            self.embedded.append((x, len(weight)))
            _refuse_max_norm(args, kwargs)
            try:
                return functional.embedding(x, weight, *args, **kwargs)
            except IndexError as error:
                expected = f"tokens 0 to {len(weight) - 1}, as the network's embedding has them"
                raise UnknownToken(must("x", f"{x.min()} to {x.max()}", expected)) from error
        known = (x >= 0) & (x < len(weight))
        found = functional.embedding(torch.where(known, x, 0), weight, *args, **kwargs)
        return torch.where(known[..., None], found, torch.nan)

    # --- Pooling -----------------------------------------------------------------------------

    def max_pool2d(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See ``torch.nn.functional.max_pool2d``; with channels last CPUs are 13 times as fast."""
        self.pooled = True
        if isinstance(x, Tensor) and not x.is_cuda and not decomposes():
            x = x.contiguous(memory_format=torch.channels_last)
        return functional.max_pool2d(x, *args, **kwargs)

    def view(self, x: Tensor, *shape: Any, **given: Any) -> Any:
        """See ``torch.Tensor.view``; a copy where the order of an image's numbers has no view."""
        if not isinstance(x, Tensor) or given or isinstance(shape[0], torch.dtype):
            return x.view(*shape, **given)
        self.viewed |= x.ndim == 4
        return x.reshape(*shape)

    # --- Recurrent networks -----------------------------------------------------------------

    def recurrent(self, kernel: Callable[..., Any], *args: Any) -> Any:
        """See ``engram.networks.recurrent``."""
        return recurrent(kernel, args, unrolled=decomposes(), dropout=self.dropout)

    def packing(self, *args: Any) -> Any:
        """See ``torch.nn.utils.rnn.pack_padded_sequence``; it looks at values."""
        if vectorized():
            raise RuntimeError("packed sequences have no rule for vmap")
        return torch._pack_padded_sequence(*args)


def _refuse_max_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses an embedding that torch would write into: no engine may change a model so."""
    longest = args[1] if len(args) > 1 else kwargs.get("max_norm")
    require(longest is None, "max_norm of an embedding", longest, "None")


def _recurring(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda pure, *args: pure.recurrent(kernel, *args)


def _unasked(function: Any) -> Callable[..., Any]:
    """Copies a torch function without its override check; functions that it calls keep theirs."""
    globals_ = function.__globals__ | {"has_torch_function": lambda _: False}
    copied = FunctionType(function.__code__, globals_, function.__name__, function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


_heads = _unasked(functional.multi_head_attention_forward)

_DRAWN: Final[dict[Any, Callable[..., Any]]] = {
    functional.dropout: Pure.dropout,
    functional.dropout1d: Pure.channels,
    functional.dropout2d: Pure.channels,
    functional.dropout3d: Pure.channels,
    functional.scaled_dot_product_attention: Pure.attention,
    functional.multi_head_attention_forward: Pure.heads,
} | {kernel: _recurring(kernel) for kernel in KERNELS}
_OTHERS: Final = _DRAWN | {
    functional.embedding: Pure.embedding,
    functional.embedding_bag: Pure.embedding_bag,
    functional.max_pool2d: Pure.max_pool2d,
    torch.Tensor.view: Pure.view,
    functional.batch_norm: Pure.batch_norm,
    functional.group_norm: Pure.group_norm,
    torch._weight_norm: Pure.weight_norm,
    torch._pack_padded_sequence: Pure.packing,
}
