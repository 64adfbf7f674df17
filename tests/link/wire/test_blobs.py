"""Blobs, and a node's store of them: what is there is not sent again."""

import hashlib
from pathlib import Path

import pytest

from engram.link.asks import Ask, Key, Listed
from engram.link.blobs import Blob, Part
from engram.link.node.store import Store

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
KEY = bytes(range(32))


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


@pytest.mark.parametrize("size", [10, 2**20, 5 * 2**19, 2**21])
def test_content_is_encrypted_with_a_key_and_each_byte_is_found(tmp_path: Path, size: int) -> None:
    data = bytes(range(1, 251)) * (size // 250 + 1)
    data = data[:size]
    blob = Blob.write(tmp_path, [data[:7], memoryview(data)[7:]], KEY)
    assert (blob.digest, blob.size) == (hashlib.sha256(data).hexdigest(), size)
    assert bytes(blob.view()) == data
    assert blob.is_whole
    assert data[:10] not in blob.path.read_bytes()
    for offset in {0, 9, size // 2, size - 1, size}:
        assert b"".join(blob.chunks(offset, 2**20)) == data[offset:]
    with pytest.raises(ValueError, match="of another key"):
        blob._replace(key=bytes(32)).view()
    blob.path.write_bytes(blob.path.read_bytes()[:-1])
    assert not blob.is_whole
    with pytest.raises(ValueError, match="damaged"):
        blob.view()


def test_an_encrypted_part_goes_on_from_its_last_whole_piece(tmp_path: Path) -> None:
    data = bytes(range(200)) * 2**14
    digest = hashlib.sha256(data).hexdigest()

    def part(key: bytes | None = KEY) -> Part:
        return Part(tmp_path / "x", len(data), digest, key)

    first = part()
    for start in range(0, 2**21 + 2**19, 300_000):
        first.add(data[start : start + 300_000])
    second = part()  # the first's process was killed
    assert second.held == 2**21
    second.add(data[2**21 :])
    blob = second.finish()
    assert bytes(blob.view()) == data
    blob.path.rename(tmp_path / "x.part")
    whole = part()  # after a restart of the node
    assert whole.held == len(data)
    assert bytes(whole.finish().view()) == data
    blob.path.rename(tmp_path / "x.part")
    assert part(bytes(32)).held == 0
    plain = part(None)
    plain.add(data[:100])
    assert part().held == 0


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


def fetched(store: Store, asked: Ask, data: bytes = DATA) -> Blob:
    """Returns the file of an ask's content, once it has come."""
    part = store.content(asked, asked.contents[0])
    assert isinstance(part, Part)
    part.add(data[part.held :])
    return store.finish(part)


def test_contents_are_kept_for_the_next_ask(tmp_path: Path) -> None:
    store, one, two, three = Store(tmp_path), ask(), ask(b"two"), ask(b"three")
    first = fetched(store, one)
    store._tidy(one)
    assert store.content(one, one.contents[0]) == first
    fetched(store, two, b"two")
    store._tidy(two)
    assert first.path.exists()
    fetched(store, three, b"three")
    store._tidy(three)
    assert not first.path.exists()


def test_contents_of_a_former_process_are_verified(tmp_path: Path) -> None:
    blob = fetched(Store(tmp_path), ask())
    assert Store(tmp_path).content(ask(), ask().contents[0]) == blob
    blob.path.write_bytes(bytes(len(DATA)))  # as a power cut leaves it
    with pytest.raises(ValueError, match="hash"):
        Store(tmp_path).content(ask(), ask().contents[0])
    assert fetched(Store(tmp_path), ask()) == blob


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


def test_a_store_with_a_key_leaves_nothing_that_can_be_read(tmp_path: Path) -> None:
    def kept() -> set[bytes]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {word for word in (b"secret", DATA[:99]) for f in files if word in f.read_bytes()}

    Store(tmp_path).keep(ask(), {}, [b"secret"])
    fetched(Store(tmp_path), ask())
    assert kept() == {b"secret", DATA[:99]}
    store = Store(tmp_path, KEY)
    assert store.reply(ask()) is None
    fetched(store, ask())
    store.keep(ask(), {}, [b"secret"])
    assert kept() == set()
    again = Store(tmp_path, KEY)
    found = again.reply(ask())
    assert found is not None
    assert bytes(found[1].view()) == b"secret"
    assert isinstance(again.content(ask(), ask().contents[0]), Blob)
    assert Store(tmp_path).reply(ask()) is None
    assert not [*tmp_path.rglob("*")]


def test_stores_keep_four_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(6):
        store.keep(ask(run=str(number)), {}, [b"reply"])
    found = [store.reply(ask(run=str(number))) is not None for number in range(6)]
    assert found == [False, False, True, True, True, True]
