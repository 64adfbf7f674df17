"""Random changes of training rows, each time that they are drawn.

An augmentation is a function of a row, such as one of ``torchvision.transforms.v2``, that draws
from torch's generator. Here it draws from a seed that is passed in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engram.core.checks import require
from engram.core.process_modes import Registry, drawing
from engram.scoring.metrics import name_of

# Listing augmentations, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

    from engram.networks.base import Inputs

Augmentation = Callable[[Any], Any]
"""``row -> row``: of the same shapes and dtypes."""

AUGMENTATIONS: Registry[Augmentation] = Registry()
"""Every augmentation, by its name."""


def augmentation(function: Augmentation, name: str = "") -> Augmentation:
    """Makes a function known as an augmentation, by its name; to be used as a decorator.

    It is given a row of inputs as the network sees them, an image as float32 of shape (channels,
    height, width) in [0, 1], and returns another one. All that it draws, it draws from torch.

    Args:
        function: The augmentation.
        name: What it is called in the setting ``augment``; by default as the function, with ``-``
            for ``_``.
    """
    AUGMENTATIONS[name or name_of(function)] = function
    return function


@augmentation
def flip_crop(image: "Tensor") -> "Tensor":
    """Moves an image by up to an eighth of its size, and turns it left to right or not."""
    require(image.ndim == 3, "rows", tuple(image.shape), "images, for the augmentation flip-crop")
    from engram.networks.vision import transforms  # noqa: PLC0415 - few runs change images

    (height, width), v2 = image.shape[1:], transforms()
    crop = v2.RandomCrop((height, width), padding=max(1, min(height, width) // 8))
    changed: Tensor = v2.RandomHorizontalFlip()(crop(image))
    return changed


def augmented(change: Augmentation, x: "Inputs", seeds: "Tensor") -> "Inputs":
    """Changes each row, on the CPU, by a seed of its own; the process's generator stays as it is.

    Args:
        change: The augmentation.
        x: Inputs, each with the leading axes of ``seeds``.
        seeds: Whole numbers.
    """
    import torch  # noqa: PLC0415 - augmentations are listed without torch
    from torch.utils._pytree import tree_map  # noqa: PLC0415 - as torch

    rows = tree_map(lambda leaf: leaf.flatten(0, seeds.ndim - 1).cpu(), x)
    found = []
    with drawing():
        for i, seed in enumerate(seeds.flatten().tolist()):
            torch.default_generator.manual_seed(seed)
            found.append(change(tree_map(lambda leaf, i=i: leaf[i], rows)))

    def stacked(*leaves: "Tensor") -> "Tensor":
        return torch.stack(leaves).view(*seeds.shape, *leaves[0].shape).to(seeds.device)

    result: Inputs = tree_map(stacked, *found)
    return result


def check_augmentation(change: Augmentation, example: "Inputs") -> None:
    """Changes some rows twice, by the same seeds.

    Args:
        change: The augmentation.
        example: Some rows of inputs, of which only dtypes and shapes matter.

    Raises:
        ValueError: If it cannot take them, changes their shape or dtype, or draws from elsewhere.
    """
    import torch  # noqa: PLC0415 - augmentations are listed without torch
    from torch.utils._pytree import tree_leaves, tree_map  # noqa: PLC0415 - as torch

    drawn = torch.Generator().manual_seed(0)

    def some(leaf: "Tensor") -> "Tensor":
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
