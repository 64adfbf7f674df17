"""Stops the build of an image whose PyTorch is not the variant that was asked for."""

import runpy
import sys
import sysconfig
from pathlib import Path


def complaint(wanted: str, packages: Path) -> str | None:
    """Returns what is wrong with the PyTorch in a folder of packages, or None.

    Reads the file in which a build says what it was made for, and does not import it: what it
    depends on, gigabytes with CUDA, is not installed yet.

    Args:
        wanted: ``any``, ``cpu`` or ``cuda``.
        packages: A ``site-packages`` folder with ``torch`` in it.
    """
    if wanted not in ("any", "cpu", "cuda"):
        return f"TORCH must be any, cpu or cuda, got {wanted!r}"
    about = runpy.run_path(str(packages / "torch" / "version.py"))
    found = "cpu" if about["cuda"] is None else "cuda"
    if wanted in ("any", found):
        return None
    return (
        f"TORCH={wanted}, but the package index gave a build for {found}, {about['__version__']}: "
        "name an index of the other one with --build-arg TORCH_INDEX=ADDRESS (PyTorch's "
        f"installation page has them), or take what there is with TORCH={found}"
    )


if __name__ == "__main__":
    sys.exit(complaint(sys.argv[1], Path(sysconfig.get_path("platlib"))))
