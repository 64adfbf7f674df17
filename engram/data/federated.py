"""The data of a federation: every row held once, and a client a list of row numbers."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.checks import must, require
from engram.core.machine import check_room
from engram.core.process_modes import drawing
from engram.core.standardization import Units
from engram.core.streams import Stream, torch_generator
from engram.data.augmentations import Augmentation
from engram.data.lazy import Lazy, RowNumbers, UnreadableRow, whole
from engram.data.schema.columns import Kind, Schema
from engram.networks.base import Inputs, Model, UnknownToken, personal_patterns, with_personal
from engram.networks.built_in import count_parameters, network
from engram.networks.layer_units import with_units
from engram.networks.loss_fit import check_fit
from engram.networks.registry import CHARACTERS, TEXTS, differs_by_client, is_one_clients
from engram.scoring.tasks import task_of
from engram.settings.errors import UNNAMED, DataError, Names, Refused, one_line

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment


_LAST: Final = re.compile(r"float32\[\d+,\d+,[134]\]")
_HINT: Final = ": set images=channels-last if rows are images (height, width, channels)"


class Split(NamedTuple):
    """Training rows or test rows.

    Attributes:
        x: Inputs of all clients: a tensor (n, ...) of uint8, float32 or int64 on the run's device,
            or ``Lazy`` rows, which are read as they are drawn; or a tuple or dictionary of such.
            Columns that are still to be standardized are float64.
        y: Targets, shape (n,) or (n, ...): int64 classes or tokens, float32 values or labels.
        rows: For each client, the numbers of its rows.
        names: What clients are called, where the data say so.
        hashes: Hashes of all training rows, (n,), where privacy is ``example``.
        given: Which row of the data as they were given each one is, (n,); None: as it is here.
    """

    x: Inputs
    y: Tensor
    rows: list[RowNumbers]
    names: Names = UNNAMED
    hashes: npt.NDArray[np.float64] | None = None
    given: RowNumbers | None = None

    @property
    def is_lazy(self) -> bool:
        """Whether its rows are read as they are drawn."""
        return isinstance(self.x, Lazy)

    @property
    def like(self) -> Inputs:
        """Some rows, of which only dtypes and shapes mean anything."""
        return tree_map(
            lambda x: tree_map(torch.from_numpy, x.like) if isinstance(x, Lazy) else x, self.x
        )

    @property
    def numbers(self) -> int:
        """Numbers in a row of inputs."""
        return sum(leaf.shape[1:].numel() for leaf in tree_leaves(self.like))

    def next_rows(self, client: int, server_round: int, size: int) -> RowNumbers:
        """Row numbers of a client in a round, >= 1, where rows come in order.

        After the last one comes the first again.
        """
        own = np.sort(self.rows[client])
        return own[((server_round - 1) * size + np.arange(size)) % len(own)]

    def take(
        self, rows: Tensor, out: Tensor | None = None, *, exact: bool = False
    ) -> tuple[Inputs, Tensor]:
        """Returns the rows as the models see them: grey levels are scaled to [0, 1].

        Args:
            rows: Their numbers, on the run's device.
            out: Where to put the inputs, flattened, if they are one tensor of numbers; they are
                returned as they are if None.
            exact: Whether float64 stays, for what standardizes them.

        Raises:
            DataError: One cannot be read; it says whose, and which.
        """
        y = _select(self.y, rows)
        try:
            x = tree_map(lambda leaf: _select(leaf, rows), self.x)
        except UnreadableRow as error:
            holders = (c for c, own in enumerate(self.rows) if error.position in own)
            client = next(holders, -1)
            raise DataError(f"client {self.names.get(client, client)}: {error}") from error
        if out is None:
            return tree_map(partial(_as_seen, exact=exact), x), y
        out.copy_(x.flatten(rows.ndim))
        return (out.mul_(1 / 255) if x.dtype == torch.uint8 else out), y


def _select(leaf: Any, rows: Tensor) -> Any:
    if isinstance(leaf, Lazy):
        read = leaf.take(rows.reshape(-1).cpu().numpy())
        return tree_map(
            lambda x: torch.from_numpy(x).to(rows.device).view(*rows.shape, *x.shape[1:]), read
        )
    # index_select is many times faster than indexing.
    return leaf.index_select(0, rows.reshape(-1)).view(*rows.shape, *leaf.shape[1:])


def seen_as(x: Any) -> Inputs:
    """Reads all rows as models see them; float64 stays.

    Args:
        x: An array of rows, ``Lazy`` rows, or a tuple or dictionary of such.
    """

    def there(leaf: Any) -> Any:
        return tree_map(lambda array: _as_seen(torch.from_numpy(array), exact=True), whole(leaf))

    return tree_map(there, x)


def _as_seen(leaf: Tensor, *, exact: bool) -> Tensor:
    if leaf.dtype == torch.uint8:
        return leaf.float().mul_(1 / 255)
    as_is = leaf.dtype == torch.int64 or (exact and leaf.dtype == torch.float64)
    return leaf if as_is else leaf.float()


class FederatedData(NamedTuple):
    """A partitioned data set.

    Attributes:
        train: Rows to learn from.
        test: Rows to be scored on; where the protocol is ``few-shot``, to fine-tune on, too.
        outputs: Number of classes, or of values or labels to predict.
        names: What clients are called, where each is a task of the data.
        validation: Rows to choose settings and rounds by; None if none are held out.
        classes: What classes are called; empty where their numbers are their names.
        schema: The schema of inputs, where these are columns with names.
        fills: As ``Arrays.fills``.
        left_out: Clients that take no part, since they have too few rows, and why: the end of a
            sentence about the client. They have no rows here.
        unscored: Clients that train, but have too few rows to be scored, and why.
        units: Units of its rows, for a network that computes in others; they are a run's.
    """

    train: Split
    test: Split
    outputs: int
    names: Names = UNNAMED
    validation: Split | None = None
    classes: tuple[str, ...] = ()
    schema: Schema | None = None
    fills: Sequence[npt.NDArray[Any]] = ()
    left_out: Mapping[int, str] = {}
    unscored: Mapping[int, str] = {}
    units: Units = Units()

    def schema_of(self, task: int | None) -> Schema | None:
        """The schema with fills of a task, or of all rows."""
        if self.schema is None or task is None or not self.fills:
            return self.schema
        return self.schema.with_fills([values[task] for values in self.fills])

    def with_inputs(self, train: Inputs, test: Inputs) -> "FederatedData":
        """Returns the same rows with other inputs."""
        held_out = self.validation and self.validation._replace(x=train)
        learned, tested = self.train._replace(x=train), self.test._replace(x=test)
        return self._replace(train=learned, test=tested, validation=held_out)

    @property
    def kind(self) -> Kind:
        """Shapes and types of its rows."""
        inputs = described(self.train.like)
        return Kind(inputs, self.outputs, self.classes, self.schema, self.units)

    @property
    def example(self) -> Inputs:
        """Two rows as networks see them: the first ones here, or drawn ones if there are none.

        Raises:
            DataError: One cannot be read.
        """
        some = [int(row) for own in self.train.rows for row in own[:2]][:2]
        if len(some) < 2:
            return example(self.kind.inputs)
        x, _ = self.train.take(torch.tensor(some, device=self.train.y.device))
        return tree_map(lambda leaf: leaf.cpu(), x)


def parameters_for(experiment: "Experiment", kind: Kind, rows: Inputs | None = None) -> int:
    """Number of parameters of a network, before there is room for them.

    For the arguments see ``model_for``; a network of the user's own has none that are known.

    Raises:
        Refused: If a row alone needs more memory than is free.
        ValueError: If the network is unknown, or does not fit the rows.
    """
    e, numbers = experiment, size(kind.inputs)
    check_room(f"a row of {numbers} numbers", 16 * numbers, "take smaller rows")
    tried = example(kind.inputs) if rows is None else rows
    outputs, hidden, tokens = kind.outputs, e.hidden_widths, e.num_tokens
    return count_parameters(e.model, tried, outputs=outputs, hidden=hidden, tokens=tokens)


def _check_model(count: int) -> None:
    # Float32, of which there are three at least: the server's, a client's, and its gradient.
    check_room(f"a model of {count} parameters", 12 * count, "take a smaller network")


def model_for(experiment: "Experiment", kind: Kind, rows: Inputs | None = None) -> Model:
    """Builds the experiment's network for such data.

    It is tried on the two rows ``rows``, or on drawn ones where there are none.

    Raises:
        Refused: If the network does not fit the data, or there is nothing to tell apart.
    """
    e = experiment
    if differs_by_client(e.model):
        expected = "one network for all clients here (those that differ by client are trained in "
        raise Refused(must("model", e.model, f"{expected}one process, and opened one by one)"))
    if e.task == "classification" and kind.outputs < 2:
        raise Refused(f"number of classes must be at least 2, got {kind.outputs}")
    generator = partial(torch_generator, e.seed, Stream.MODEL)

    def built(example: Inputs) -> Model:
        return network(
            e.model,
            example,
            outputs=kind.outputs,
            hidden=e.hidden_widths,
            tokens=e.num_tokens,
            norm=e.norm,
            adapters=e.adapters,
            statistics=e.statistics,
            generator=generator(),
        )

    try:
        _check_model(parameters_for(e, kind, rows))
        tried = example(kind.inputs) if rows is None else rows
        try:
            model = built(tried)
        except UnknownToken:
            tried = example(kind.inputs)
            model = built(tried)
            if not any(tree_leaves(model.tokens)):
                raise
            # All rows' tokens are known soon: see ``with_known_tokens``.
        _check_model(model.parameters)
        least = f"at least {model.least_rows} for this network, which normalizes by its batches"
        require(e.batch_size >= model.least_rows, "batch-size", e.batch_size, least)
        model = with_units(model, kind.units)
        start = model.init(generator())
        check_fit(model, start, task_of(e.task, e.loss), tried, kind.outputs)
        local = e.statistics == "local"
        if e.personal == "*" and is_one_clients(e.model):
            return model._replace(personal=frozenset(start))
        personal = personal_patterns(e.personal, e.adapters)
        if personal or (local and model.running):
            model = with_personal(model, start, personal=personal, running=local)
        return model
    except ValueError as error:
        hint = _HINT if _LAST.fullmatch(kind.inputs) and e.images == "auto" else ""
        raise Refused(one_line(f"{error}{hint}")) from error


def with_known_tokens(data: FederatedData, model: Model, experiment: "Experiment") -> FederatedData:
    """Returns the data; rows that are read as they are drawn are checked then.

    Raises:
        DataError: If some rows hold a token that the network's embedding does not have.
    """
    if not any(tree_leaves(model.tokens)):
        return data
    whose = "the network's embedding has"
    whose = "num-classes or y has" if experiment.model in CHARACTERS else whose
    whose = "vocabulary (of the schema) has" if experiment.model in TEXTS else whose

    def known(x: Any, tokens: Any) -> Any:
        if isinstance(x, Lazy):
            return x.then(lambda rows: drawn(rows, tokens))
        if isinstance(x, dict):
            return {name: known(leaf, tokens[name]) for name, leaf in x.items()}
        if isinstance(x, tuple):
            return tuple(map(known, x, tokens))
        if tokens and x.numel() and not 0 <= x.min() <= x.max() < tokens:
            expected = f"tokens 0 to {tokens - 1}, as {whose} them"
            raise DataError(must("x", f"{x.min()} to {x.max()}", expected))
        return x

    def drawn(rows: Any, tokens: Any) -> Any:
        known(tree_map(torch.from_numpy, rows), tokens)
        return rows

    return data.with_inputs(*(known(split.x, model.tokens) for split in data[:2]))


_DTYPES: Final = {"float32": torch.float32, "int64": torch.int64}
_LEAF: Final = re.compile(r"(float32|int64)\[((?:\d{1,9}(?:,\d{1,9}){0,7})?)\]", re.ASCII)
_MOST_LEAVES: Final = 64


def described(inputs: Inputs) -> str:
    """Returns the dtype and shape of a row as models see it: ``float32[1,28,28]``.

    Several inputs are described in JSON: ``["int64[80]", "float32[3]"]``, or an object by name.
    """

    def leaf(x: Tensor) -> str:
        dtype = "int64" if x.dtype == torch.int64 else "float32"
        return f"{dtype}[{','.join(map(str, x.shape[1:]))}]"

    text = tree_map(leaf, inputs)
    return text if isinstance(text, str) else json.dumps(text)


def example(text: str, rows: int = 2) -> Inputs:
    """Returns ``rows`` drawn rows of the described dtype and shape, the same each time.

    Numbers are in [0, 1), as grey levels are, and whole numbers are 1: a token that every
    embedding has, and the length of a sequence that is not empty.

    Raises:
        ValueError: If the text is not one that ``described`` writes.
    """
    check(text)
    draw = Generator().manual_seed(0)

    def drawn(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if dtype == torch.int64:
            return torch.ones(rows, *shape, dtype=dtype)
        return torch.rand(rows, *shape, generator=draw)

    return _made(text, drawn)


def check(text: str) -> None:
    """Checks a description, which is untrusted: nothing of the claimed size is allocated.

    Raises:
        ValueError: If the text is not one that ``described`` writes.
    """
    kind = _made(text, lambda dtype, shape: None)
    count = 1 if kind is None else len(kind)
    if not 0 < count <= _MOST_LEAVES:
        raise ValueError(f"inputs must be 1 to {_MOST_LEAVES}, got {count}")


def size(text: str) -> int:
    """Number of numbers in a described row."""
    return sum(math.prod(int(n) for n in shape.split(",") if n) for _, shape in _LEAF.findall(text))


def _made(text: str, make: Callable[[torch.dtype, tuple[int, ...]], Any]) -> Any:
    def made(kind: Any) -> Any:
        match = _LEAF.fullmatch(kind) if isinstance(kind, str) else None
        if match is None:
            raise ValueError(f"inputs must be described as float32[3] is, got {str(kind)[:40]!r}")
        dtype, shape = match.groups()
        return make(_DTYPES[dtype], tuple(int(n) for n in shape.split(",") if n))

    try:
        parsed = text if _LEAF.fullmatch(text) else json.loads(text)
    except (ValueError, RecursionError):
        parsed = text
    if isinstance(parsed, dict):
        return {name: made(one) for name, one in parsed.items()}
    return tuple(map(made, parsed)) if isinstance(parsed, list) else made(parsed)


def augmented(change: Augmentation, x: Inputs, seeds: Tensor) -> Inputs:
    """Changes each row, on the CPU, by a seed of its own; the process's generator stays as it is.

    Inputs have the leading axes of ``seeds``, which are whole numbers.
    """
    rows = tree_map(lambda leaf: leaf.flatten(0, seeds.ndim - 1).cpu(), x)
    found = []
    with drawing():
        for i, seed in enumerate(seeds.flatten().tolist()):
            torch.default_generator.manual_seed(seed)
            found.append(change(tree_map(lambda leaf, i=i: leaf[i], rows)))

    def stacked(*leaves: Tensor) -> Tensor:
        return torch.stack(leaves).view(*seeds.shape, *leaves[0].shape).to(seeds.device)

    result: Inputs = tree_map(stacked, *found)
    return result


def check_augmentation(change: Augmentation, example: Inputs) -> None:
    """Changes some rows twice, by the same seeds.

    Raises:
        ValueError: If it cannot take them, changes their shape or dtype, or draws from elsewhere.
    """
    drawn = torch.Generator().manual_seed(0)

    def some(leaf: Tensor) -> Tensor:
        rows = leaf[:1].expand(8, *leaf.shape[1:])
        return torch.rand(rows.shape, generator=drawn) if rows.is_floating_point() else rows.clone()

    rows, seeds = tree_map(some, example), torch.arange(8)
    try:
        with drawing(0):  # numpy's numbers go on from the first to the second
            one, other = (augmented(change, rows, seeds) for _ in range(2))
        kinds = [[(a.dtype, tuple(a.shape[1:])) for a in tree_leaves(x)] for x in (rows, one)]
    except Exception as error:  # it may be anybody's
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"augment must take a row of inputs, got {what}") from error
    require(kinds[0] == kinds[1], "augment", kinds[1], f"rows as they were, {kinds[0]}")
    same = all(map(torch.equal, tree_leaves(one), tree_leaves(other)))
    require(same, "augment", "others for the same seed", "a function that draws from torch alone")
