"""The page on architecture: a walk through the functions that run Ditto, in the order of calls."""

import re
import sys
from pathlib import Path

from engram.cli.__main__ import main
from engram.settings.fingerprint import source_root

ROOT = source_root().resolve()
PAGE = ROOT / "docs" / "architecture.md"
SMALL = ("num-clients=4", "clients-per-round=4", "num-rounds=2", "local-steps=2")


def walk():
    """Returns the functions of the page's walk, as (path, name)."""
    text = PAGE.read_text(encoding="utf-8").partition("## A walk")[2].partition("\n## ")[0]
    return re.findall(r"^- `([\w/]+\.py):([\w.]+)`: ", text, flags=re.MULTILINE)


def calls(function, wanted):
    """Runs a function, and returns its calls of the functions that are wanted, in their order."""
    names, found = {}, []  # of code objects; looked up once each

    def name_of(code):
        path = Path(code.co_filename).resolve()  # the page has the places of the files themselves
        if not path.is_relative_to(ROOT):
            return None
        name = path.relative_to(ROOT).as_posix(), code.co_qualname.rpartition("<locals>.")[2]
        return name if name in wanted else None

    def profile(frame, event, _):
        if event == "call":
            code = frame.f_code
            if code not in names:
                names[code] = name_of(code)
            if names[code]:
                found.append(names[code])

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def test_a_run_of_ditto_goes_the_walk(monkeypatch, tmp_path):
    sets = [word for setting in SMALL for word in ("--set", setting)]
    words = ["engram", "run", "ditto", *sets, "--out", str(tmp_path / "run")]
    monkeypatch.setattr("sys.argv", words)
    steps = walk()
    assert len(steps) >= 20
    made = calls(main, set(steps))
    assert sorted(set(steps) - set(made)) == []
    rest = iter(made)  # each step is looked for after the one before
    assert [step for step in steps if step not in rest] == []
    assert (tmp_path / "run" / "results.json").is_file()
