"""Recurrent networks, where torch's kernels have no rule, or drop by the process's generator."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

Dropout = Callable[[Tensor, float, bool], Tensor]


def recurrent(
    kernel: Callable[..., Any], args: tuple[Any, ...], *, unrolled: bool, dropout: Dropout
) -> Any:
    """Runs a kernel, such as ``torch.lstm``; returns outputs, and states at the end.

    Args:
        kernel: One of ``KERNELS``.
        args: Its arguments, of sequences of one length or of a packed one.
        unrolled: Whether it must be in plain operations; a packed sequence never is.
        dropout: ``(x, share, training) -> x``, between layers.
    """
    x, second, third, *rest = args
    if not isinstance(third, list):  # the weights: sizes of a packed sequence stand before them
        return _packed(kernel, dropout, x, second, third, *rest)
    _, num_layers, share, train, *_ = rest
    if not unrolled and not (train and share > 0 and num_layers > 1):
        return kernel(*args)
    out, states = _unrolled(KERNELS[kernel], dropout, x, _listed(second), third, *rest)
    return out, *states


def _packed(
    kernel: Callable[..., Any],
    drop: Dropout,
    x: Tensor,
    sizes: Tensor,
    start: Any,
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    each = len(weights) // num_layers
    starts = zip(*(s.chunk(num_layers) for s in _listed(start)), strict=True)
    ends: list[list[Tensor]] = []
    for layer, states in enumerate(starts):
        if layer:
            x = drop(x, dropout, train)
        own = weights[layer * each : (layer + 1) * each]
        begun = states if len(states) > 1 else states[0]
        x, *found = kernel(x, sizes, begun, own, has_biases, 1, 0.0, train, bidirectional)
        ends.append(found)
    return x, *(torch.cat(state) for state in zip(*ends, strict=True))


def _unrolled(
    cell: "_Cell",
    drop: Dropout,
    x: Tensor,
    starts: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Runs layers with ``weights`` as ``torch.nn.RNNBase`` has them.

    A step is ``(inputs' part of the gates, states, weight, bias) -> states``; x has the shape
    (time, batch, in), or the batch first, and each start (layers * directions, batch, hidden).

    Raises:
        RuntimeError: States are projected.
    """
    if batch_first:
        x = x.transpose(0, 1)
    each, ways = (4 if has_biases else 2), (2 if bidirectional else 1)
    if len(weights) != each * ways * num_layers:
        raise RuntimeError("proj_size must be 0 here")
    ends: list[list[Tensor]] = []
    for layer in range(num_layers):
        if layer:
            x = drop(x, dropout, train)
        found = []
        for way in range(ways):
            at = layer * ways + way
            own = weights[at * each : (at + 1) * each]
            found.append(_one_layer(cell, x, [s[at] for s in starts], own, backwards=way == 1))
        x = torch.cat([out for out, _ in found], -1) if ways == 2 else found[0][0]
        ends += [states for _, states in found]
    stacked = [torch.stack(state) for state in zip(*ends, strict=True)]
    return (x.transpose(0, 1) if batch_first else x), stacked


def _listed(states: Any) -> list[Tensor]:
    return [states] if isinstance(states, Tensor) else list(states)


_Cell = Callable[[Tensor, list[Tensor], Tensor, Tensor | None], list[Tensor]]


def _one_layer(
    cell: _Cell, x: Tensor, states: list[Tensor], weights: list[Tensor], *, backwards: bool
) -> tuple[Tensor, list[Tensor]]:
    """Runs one layer over time, (t, b, in) -> (t, b, hidden)."""
    given, own = weights[0], weights[1]
    bias, own_bias = weights[2:] if len(weights) == 4 else (None, None)
    gates = functional.linear(x, given, bias)  # of all inputs at once
    outs = []
    for gate in reversed(gates.unbind(0)) if backwards else gates.unbind(0):
        states = cell(gate, states, own, own_bias)
        outs.append(states[0])
    return torch.stack(outs[::-1] if backwards else outs), states


def _lstm_cell(
    gate: Tensor, states: list[Tensor], weight: Tensor, bias: Tensor | None
) -> list[Tensor]:
    h, c = states
    i, f, g, o = (gate + functional.linear(h, weight, bias)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


def _gru_cell(
    gate: Tensor, states: list[Tensor], weight: Tensor, bias: Tensor | None
) -> list[Tensor]:
    (h,) = states
    reset, update, new = gate.chunk(3, -1)
    own_reset, own_update, own_new = functional.linear(h, weight, bias).chunk(3, -1)
    new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return [torch.lerp(new, h, (update + own_update).sigmoid())]


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> _Cell:
    def cell(
        gate: Tensor, states: list[Tensor], weight: Tensor, bias: Tensor | None
    ) -> list[Tensor]:
        return [activation(gate + functional.linear(states[0], weight, bias))]

    return cell


KERNELS: Final[dict[Callable[..., Any], _Cell]] = {
    torch.lstm: _lstm_cell,
    torch.gru: _gru_cell,
    torch.rnn_tanh: _rnn_cell(torch.tanh),
    torch.rnn_relu: _rnn_cell(torch.relu),
}
"""Kernels of recurrent networks, and a step of each in plain operations."""
