"""Models as ONNX files, with outputs equal to the module's."""

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.process_modes import filtering
from engram.data.federated import example
from engram.data.schema.columns import Kind
from engram.home.onnx_sandbox import Runs, session
from engram.networks.base import called
from engram.settings.errors import Refused, one_line

OUTPUTS: Final = "outputs"
_ROWS: Final = 3  # of the example; a program of one row may be for one row alone
_CLOSE: Final = 1e-4  # outputs may differ by so much, beside their size


def input_names(inputs: Any) -> list[str]:
    """Returns the inputs' names: ``x``; of several, ``x0`` and so on, or their keys."""
    if isinstance(inputs, dict):
        return list(inputs)
    return [f"x{i}" for i in range(len(inputs))] if isinstance(inputs, tuple) else ["x"]


def to_onnx(module: nn.Module, kind: Kind) -> bytes:
    """Exports a module as an ONNX file, and compares its outputs with the module's.

    Its inputs are called as ``input_names`` says, with any number of rows, and its output
    ``outputs``.

    Raises:
        Refused: If ONNX cannot express the module, or what comes of it computes something else.
    """
    inputs = _example(module, kind)
    args, named = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    args = args if isinstance(args, tuple) else (args,)
    rows, shapes = torch.export.Dim("rows"), torch.export.ShapesCollection()  # type: ignore[no-untyped-call]  # torch has no types here
    for leaf in tree_leaves(inputs):
        shapes[leaf] = {0: rows}
    noise = io.StringIO()
    try:
        with filtering(), contextlib.redirect_stdout(noise), torch.no_grad():
            warnings.simplefilter("ignore")
            structure = shapes.dynamic_shapes(module, args, named)  # type: ignore[no-untyped-call]  # likewise
            program = torch.export.export(module, args, named, dynamic_shapes=structure)
            program = program.run_decompositions(_decompositions())
            made: Any = torch.onnx.export(
                program, input_names=input_names(inputs), output_names=[OUTPUTS], verbose=False
            )
        found: bytes = made.model_proto.SerializeToString()
        same = _same(module, inputs, on_tensors(session(found), kind))
    except Exception as error:  # of any of several packages
        why = one_line(" ".join(str(error).split()))
        raise Refused(
            f"format must be safetensors for this model, which ONNX cannot express: {why}"
        ) from error
    if not same:
        raise Refused("format must be safetensors: as ONNX it computes something else")
    return found


def on_tensors(runs: Runs, kind: Kind) -> Callable[[Any], Tensor]:
    """Returns an ONNX file as a function of a module's inputs; a network's are float32."""

    def run(inputs: Any) -> Tensor:
        names, leaves = input_names(inputs), tree_leaves(inputs)
        if kind.inputs:
            leaves = [x.float() if x.dtype == torch.float64 else x for x in leaves]
        arrays = {name: leaf.numpy() for name, leaf in zip(names, leaves, strict=True)}
        return torch.from_numpy(runs(arrays))

    return run


def _example(module: nn.Module, kind: Kind) -> Any:
    if not kind.columns:
        return example(kind.inputs, _ROWS)
    dtype = next(module.parameters()).dtype
    return torch.zeros(_ROWS, len(kind.columns), dtype=dtype)


def _same(module: nn.Module, inputs: Any, runs: Callable[[Any], Tensor]) -> bool:
    """Returns whether outputs agree, also for another number of other rows."""
    generator = torch.Generator().manual_seed(0)

    def other(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf[: _ROWS - 1]
        return torch.randn(_ROWS - 1, *leaf.shape[1:], generator=generator, dtype=leaf.dtype)

    with torch.no_grad():
        return all(
            torch.allclose(called(module, some), runs(some), rtol=_CLOSE, atol=_CLOSE)
            for some in (inputs, tree_map(other, inputs))
        )


def _decompositions() -> Any:
    """Returns decompositions of operators that ONNX's exporter lacks."""
    table = torch.export.default_decompositions()

    def distances(x: Tensor, y: Tensor, p: float = 2.0, mode: Any = None) -> Tensor:
        del mode
        gaps = x.unsqueeze(-2) - y.unsqueeze(-3)
        lengths: Tensor = torch.linalg.vector_norm(gaps, ord=p, dim=-1)
        return lengths

    table[torch.ops.aten.cdist.default] = distances
    table[torch.ops.aten._cdist_forward.default] = distances
    return table
