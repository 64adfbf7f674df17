"""Cuts the symbol tables off shared libraries: a fifth of their bytes, for debuggers alone.

What a loader reads lies in segments, which the head of a file lists. Sections, which lie behind
them, are read by linkers and debuggers. CUDA's libraries stay as they are.
"""

import struct
import sysconfig
from pathlib import Path

_BEGINNING = b"\x7fELF\x02\x01"  # of a 64-bit library of a little-endian machine
_LOADED = 1  # the type of a segment that is loaded


def cut(path: Path) -> None:
    """Cuts a library behind its last segment; any other file stays as it is."""
    with path.open("r+b") as file:
        head = file.read(64)
        if not head.startswith(_BEGINNING):
            return
        (table,), (size, count) = (
            struct.unpack_from("<Q", head, 32),
            struct.unpack_from("<2H", head, 54),
        )
        file.seek(table)
        segments, end = file.read(size * count), table + size * count
        for at in range(0, size * count, size):
            kind, _, offset, _, _, length = struct.unpack_from("<2I4Q", segments, at)
            if kind == _LOADED:
                end = max(end, offset + length)
        file.seek(40)
        file.write(bytes(8))  # there is no table of sections ...
        file.seek(60)
        file.write(bytes(4))  # ... of any length
        file.truncate(end)


def main(packages: Path) -> None:
    """Cuts all libraries in a folder of packages."""
    for path in packages.rglob("*.so*"):
        cudas = "nvidia" in path.parts or "cuda" in path.name
        if path.is_file() and not path.is_symlink() and not cudas:
            cut(path)


if __name__ == "__main__":
    main(Path(sysconfig.get_path("platlib")))
