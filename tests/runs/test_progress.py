"""What is counted of each node, and what a file says while the run goes on."""

import json

from engram.runs.progress import RunProgress
from engram.runs.run import PROGRESS


def read(folder):
    return json.loads((folder / PROGRESS).read_text())


def test_each_nodes_bytes_seconds_and_lateness_add_up_over_exchanges(tmp_path):
    progress = RunProgress(tmp_path / PROGRESS)
    for _ in range(3):
        progress.begin("train", {11: [0], 12: [1, 2]})
        progress.sent(11, 100)
        progress.sent(12, 300)
        progress.received(11, 70)
        progress.answered(11, seconds=2.0, training=1.5)
        progress.end([12])
    nodes = read(tmp_path)["nodes"]
    spent = {"bytes-sent": 300, "bytes-received": 210}
    spent |= {"seconds-training": 4.5, "seconds-transfer": 1.5}
    assert nodes["11"] == {"clients": [0], **spent, "replies": 3, "late": 0}
    assert nodes["12"]["clients"] == [1, 2]
    assert (nodes["12"]["replies"], nodes["12"]["late"]) == (0, 3)


def test_the_file_says_who_is_waited_for(tmp_path):
    progress = RunProgress(tmp_path / PROGRESS)
    progress.begin("train", {11: [0], 12: [1]})
    assert read(tmp_path)["kind"] == "train"
    assert read(tmp_path)["waiting"] == [11, 12]
    progress._written = float("-inf")  # half a second later
    progress.answered(12, seconds=1.0, training=0.5)
    assert (read(tmp_path)["waiting"], read(tmp_path)["answered"]) == ([11], [12])
    progress.end([11])
    assert (read(tmp_path)["kind"], read(tmp_path)["waiting"]) == ("", [])


def test_a_resumed_run_goes_on_counting_and_a_damaged_file_is_begun_anew(tmp_path):
    first = RunProgress(tmp_path / PROGRESS)
    first.sent(11, 100)
    first.end([])
    second = RunProgress(tmp_path / PROGRESS)
    second.sent(11, 1)
    second.end([])
    assert read(tmp_path)["nodes"]["11"]["bytes-sent"] == 101
    (tmp_path / PROGRESS).write_text("{")
    third = RunProgress(tmp_path / PROGRESS)
    third.end([])
    assert read(tmp_path)["nodes"] == {}


def test_no_watcher_no_file_and_a_folder_that_is_gone_stops_nothing(tmp_path):
    RunProgress().end([1])
    assert list(tmp_path.iterdir()) == []
    RunProgress(tmp_path / "gone" / PROGRESS).end([1])
