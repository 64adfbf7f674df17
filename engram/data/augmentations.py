"""Random changes of training rows, each time that they are drawn.

An augmentation is a function of a row, such as one of ``torchvision.transforms.v2``, that draws
from torch's generator. Here it draws from a seed that is passed in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engram.core.checks import require
from engram.core.process_modes import Registry
from engram.scoring.metrics import name_of

# Listing augmentations, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

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
