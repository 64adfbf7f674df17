"""Blobs, and a node's store of them: what is there is not sent again."""

import hashlib
from pathlib import Path

import pytest

from engram.link.asks import Ask, Key, Listed
from engram.link.blobs import Blob, Part
from engram.link.node.store import Store

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_content_is_stored_by_its_hash(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path, [DATA[:100], memoryview(DATA)[100:]])
    assert (blob.digest, blob.size, bytes(blob.view())) == (DIGEST, len(DATA), DATA)
    assert b"".join(blob.chunks(0, 1000)) == DATA
    assert b"".join(blob.chunks(9999, 1000)) == DATA[9999:]
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]


def test_a_part_goes_on_from_what_is_there(tmp_path: Path) -> None:
    first = Part(tmp_path / "x", len(DATA), DIGEST)
    first.add(DATA[:5000])  # and its process is killed
    second = Part(tmp_path / "x", len(DATA), DIGEST)
    assert second.held == 5000
    second.add(DATA[5000:])
    assert bytes(second.finish().view()) == DATA


def test_other_content_than_was_promised_begins_anew(tmp_path: Path) -> None:
    part = Part(tmp_path / "x", len(DATA), DIGEST)
    part.add(b"?" * len(DATA))
    with pytest.raises(ValueError, match="hash"):
        part.finish()
    assert Part(tmp_path / "x", len(DATA), DIGEST).held == 0


def test_more_than_was_promised_is_refused(tmp_path: Path) -> None:
    part = Part(tmp_path / "x", 10, DIGEST)
    with pytest.raises(ValueError, match="10 bytes"):
        part.add(b"?" * 11)


# --- A node's store ------------------------------------------------------------------------------


def ask(data: bytes = DATA, run: str = "1", request: str = "1/train") -> Ask:
    """Returns an ask of one content."""
    contents = (Listed(hashlib.sha256(data).hexdigest(), len(data), inline=False),)
    return Ask(Key("", run, request), f"mark of {data!r}", "train", {}, contents, b"", 1.0, 100)


def fetched(store: Store, asked: Ask, data: bytes = DATA) -> Path:
    """Returns the file of an ask's content, once it has come."""
    part = store.content(asked, asked.contents[0])
    assert isinstance(part, Part)
    part.add(data[part.held :])
    return store.finish(part)


def test_contents_are_kept_for_the_next_ask(tmp_path: Path) -> None:
    store, one, two, three = Store(tmp_path), ask(), ask(b"two"), ask(b"three")
    first = fetched(store, one)
    store.tidy(one)
    assert store.content(one, one.contents[0]) == first
    fetched(store, two, b"two")
    store.tidy(two)
    assert first.exists()
    fetched(store, three, b"three")
    store.tidy(three)
    assert not first.exists()


def test_contents_of_a_former_process_are_verified(tmp_path: Path) -> None:
    path = fetched(Store(tmp_path), ask())
    assert Store(tmp_path).content(ask(), ask().contents[0]) == path
    path.write_bytes(bytes(len(DATA)))  # as a power cut leaves it
    with pytest.raises(ValueError, match="hash"):
        Store(tmp_path).content(ask(), ask().contents[0])
    assert fetched(Store(tmp_path), ask()) == path


def test_the_last_two_replies_of_a_run_are_kept(tmp_path: Path) -> None:
    store, asks = Store(tmp_path), [ask(request=f"{number}/train") for number in range(3)]
    for each in asks:
        store.keep(each, {"n": 1}, [b"reply"])
    found = [store.reply(each) for each in asks]
    assert [reply is not None for reply in found] == [False, True, True]
    assert found[2] is not None
    assert (found[2][0].table("settings"), bytes(found[2][1].view())) == ({"n": 1}, b"reply")
    assert store.reply(asks[2]._replace(mark="of another question")) is None
    store.over("1")
    assert store.reply(asks[2]) is None


def test_a_reply_that_another_process_has_written_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(ask(), {}, [b"former"])
    blob = Blob.write(store.place(ask()), [b"reply"])
    store.keep(ask(), {}, blob)
    found = store.reply(ask())
    assert found is not None
    assert bytes(found[1].view()) == b"reply"
    assert len([*store.place(ask()).iterdir()]) == 2


def test_stores_keep_four_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(6):
        store.keep(ask(run=str(number)), {}, [b"reply"])
    found = [store.reply(ask(run=str(number))) is not None for number in range(6)]
    assert found == [False, False, True, True, True, True]
