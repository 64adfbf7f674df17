"""torchvision, beside any build of torch."""

from typing import Any, Final

_KEPT: Final[list[Any]] = []


def torchvision() -> Any:
    """Returns the package ``torchvision``, with its ``datasets`` and ``models``."""
    # PyPI's torchvision next to a CPU build of torch fails on import ("operator torchvision::nms
    # does not exist"): it registers fake kernels for two operators of its compiled part, which
    # was built for CUDA. Data sets and networks are pure Python, so declaring the two is enough.
    import torch  # noqa: PLC0415 - slow to import, not always needed

    try:
        import torchvision as package  # noqa: PLC0415 - slow to import, not always needed
    except RuntimeError:
        # torch leaves this class without annotations.
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)  # its operators disappear with it
        import torchvision as package  # noqa: PLC0415 - slow to import, not always needed
    return package


def transforms() -> Any:
    """Returns the package ``torchvision.transforms.v2``."""
    torchvision()
    from torchvision.transforms import v2  # noqa: PLC0415 - slow to import, not always needed

    return v2
