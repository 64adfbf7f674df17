"""Only a run's own files leave its folder for others to see; links lead nowhere."""

import os
from pathlib import Path

import pytest

from engram.compare.reports.base import pictures_of
from engram.runs.writer import RunWriter
from engram.studio.pages.page import page
from engram.studio.tracking.sending import _Sending, send
from tests.support import small

SECRET = b"\x89PNG\r\n the key of somebody"


@pytest.fixture
def record(tmp_path):
    """A finished run, beside whose record are files that it has not written."""
    (tmp_path / "key").write_bytes(SECRET)
    made = RunWriter.create(tmp_path / "run", small(), engine="vectorized", training="a1b2")
    made.append({"round": 1, "accuracy": 0.5})
    made.finish({"method": "local-moml", "accuracy": 0.5})
    (made.folder / "zz.png").symlink_to(tmp_path / "key")
    (made.folder / "accuracy.png").symlink_to(tmp_path / "key")
    os.mkfifo(made.folder / "clients.png")
    return made


def test_a_tracker_is_sent_known_files_and_no_links(record):
    names = {path.name for path in _Sending(record, "tensorboard", "")._files()}
    assert names == {"config.json", "results.json", "metrics.jsonl"}
    for name, content in (("accuracy.png", SECRET), ("clients.png", b"no picture")):
        (record.folder / name).unlink()
        (record.folder / name).write_bytes(content)
    names = {path.name for path in _Sending(record, "tensorboard", "")._files()}
    assert names == {"config.json", "results.json", "metrics.jsonl", "accuracy.png"}
    assert pictures_of(record) == ["accuracy.png", "clients.png"]


def test_a_tracker_does_not_write_through_a_link(record, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (record.folder / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="tensorboard is a link, which is not followed"):
        send(record.folder, "tensorboard")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_page_holds_the_plots_of_the_record_and_no_file(engram, tmp_path):
    given = ["--set", "num-clients=10", "--set", "num-rounds=2"]
    assert engram("run", "meta-ban", *given, "--out", "sites")[0] == 0
    Path("key").write_bytes(SECRET)
    Path("sites/zz.png").symlink_to(tmp_path / "key")
    os.mkfifo("sites/aa.png")
    Path("sites/regret.png").unlink()
    Path("sites/regret.png").symlink_to(tmp_path / "key")
    text = page(Path("sites"))
    assert text.count("data:image/png;base64,iVBOR") == text.count("data:image/png") == 1
    assert engram("show", "sites")[0] == 0  # draws anew, in place of the link
    assert Path("key").read_bytes() == SECRET
    assert not Path("sites/regret.png").is_symlink()
