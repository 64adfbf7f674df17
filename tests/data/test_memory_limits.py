"""Rows for whose copies memory is short: refused in one line, before a folder is made."""

import sys

import numpy as np
import pytest

from engram.cli.__main__ import main
from engram.core import machine
from tests.support import write_npz


@pytest.mark.parametrize(
    ("method", "kind", "free", "says"),
    [
        ("local", np.float64, 400_000, "rows.npz in float32 needs 8.94e-05 GiB"),  # 4 bytes x 24000
        ("local", np.float32, 250_000, "a copy of the rows needs 5.36e-05 GiB"),  # 16 bytes x 3600
        ("molar", np.float32, 300_000, "rows.npz in float64 needs 0.000179 GiB"),  # 8 bytes x 24000
    ],
)
def test_a_copy_that_does_not_fit_is_refused(
    tmp_path, monkeypatch, capsys, method, kind, free, says
):
    monkeypatch.chdir(tmp_path)
    numbers = np.arange(6000)
    write_npz(tmp_path / "rows.npz", x=np.zeros((6000, 4), kind), y=numbers % 2, task=numbers % 3)
    left, read = [free], np.lib.format.read_array

    def read_array(stream, **options):
        array = read(stream, **options)
        left[0] -= array.nbytes
        return array

    monkeypatch.setattr(np.lib.format, "read_array", read_array)
    monkeypatch.setattr(machine, "available", lambda device: left[0])
    monkeypatch.setattr(machine, "_SMALL", 0)
    arguments = f"engram run {method} --set dataset=npz:rows.npz --out run"
    monkeypatch.setattr(sys, "argv", arguments.split())
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert said.startswith(f"engram: {says}")
    assert not (tmp_path / "run").exists()
