"""Writes the index of methods anew: ``python -m engram.methods``."""

from pathlib import Path

from engram.methods.entries import written

if __name__ == "__main__":
    (Path(__file__).parent / "index.json").write_text(written(), encoding="utf-8")
