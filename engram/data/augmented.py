"""Training rows as an augmentation changes them, each time that they are drawn."""

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.checks import require
from engram.core.process_modes import drawing
from engram.data.augmentations import Augmentation
from engram.networks.base import Inputs


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
        kinds = [
            [(leaf.dtype, tuple(leaf.shape[1:])) for leaf in tree_leaves(x)] for x in (rows, one)
        ]
    except Exception as error:  # it may be anybody's
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"augment must take a row of inputs, got {what}") from error
    require(kinds[0] == kinds[1], "augment", kinds[1], f"rows as they were, {kinds[0]}")
    same = all(map(torch.equal, tree_leaves(one), tree_leaves(other)))
    require(same, "augment", "others for the same seed", "a function that draws from torch alone")
