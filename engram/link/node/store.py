"""A node's store: contents of its questions, and its last replies, in files.

What it has fetched of a model stays, to be completed. A reply stays until its run has asked more,
so that the same question gets the same reply without being worked on twice; or until a former round
is worked on again. Names that a server makes up are hashed before they name files. Content is
encrypted if the site has a key for its memories.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from engram.link.asks import Ask, Listed, round_number
from engram.link.blobs import Blob, Part
from engram.link.frames import LARGEST, Frame, pack, unpack
from engram.link.transport import INLINE

_REPLIES, _KINDS, _RUNS = 2, 4, 4  # most replies of a kind, kinds of a run, and runs, kept
_REPLY: Final = "reply"  # the file beside a reply's content


class Store:
    """Files of a node, below a folder of its state; with a key, encrypted."""

    def __init__(self, state: Path, key: bytes | None = None) -> None:
        names, self.key = ("contents", "replies"), key
        plain, sealed = ([state / f"{name}{end}" for name in names] for end in ("", ".encrypted"))
        (self._contents, self._replies), others = (sealed, plain) if key else (plain, sealed)
        for folder in others:
            shutil.rmtree(folder, ignore_errors=True)
        self._whole: set[Path] = set()  # contents whose hashes this process has seen
        self._former: dict[str, set[str]] = {}  # hashes of contents of each run's last ask

    def place(self, ask: Ask) -> Path:
        """Returns the folder of a reply's content."""
        number, request = round_number(ask.key.request), _hashed(ask.key.request)
        return self._replies / _hashed(ask.key.run) / _hashed(ask.kind) / f"{number}-{request}"

    def content(self, ask: Ask, listed: Listed) -> Blob | Part:
        """Returns a content of an ask, or the part that has arrived."""
        path = self._contents / _hashed(ask.key.run) / listed.digest
        if path not in self._whole and path.is_file():  # which a power cut may have damaged
            path.rename(path.with_name(f"{path.name}.part"))
        if path in self._whole and path.is_file():
            return Blob(listed.digest, listed.size, path, self.key)
        part = Part(path, listed.size, listed.digest, self.key)
        return self.finish(part) if part.held == listed.size else part

    async def contents(
        self, ask: Ask, fetch: Callable[[bytes], AsyncIterator[bytes]]
    ) -> list[bytes | Blob]:
        """Returns an ask's contents: small ones, and files; missing parts are fetched."""
        self._tidy(ask)
        inline, found = ask.inline, list[bytes | Blob]()
        for each in ask.contents:
            if each.inline:
                found.append(inline[each.digest])
                continue
            part = await asyncio.to_thread(self.content, ask, each)  # it may have much to hash
            if isinstance(part, Part):
                with contextlib.closing(part):
                    request = pack("fetch", offset=part.held, digest=each.digest, **ask.name)
                    async for chunk in fetch(request):
                        part.add(chunk)
                    found.append(self.finish(part))
            else:
                found.append(part)
        return found

    def finish(self, part: Part) -> Blob:
        """Returns a content that has come whole."""
        blob = part.finish()
        self._whole.add(blob.path)
        return blob

    def _tidy(self, ask: Ask) -> None:
        """Removes replies of later rounds, and contents that neither this ask nor the last has."""
        for place in self.place(ask).parent.glob("*"):
            if round_number(place.name) > round_number(ask.key.request):
                shutil.rmtree(place, ignore_errors=True)
        run = ask.key.run
        new, former = {each.digest for each in ask.contents}, self._former.get(run, set())
        (folder := self._contents / _hashed(run)).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name.partition(".")[0] not in new | former:
                path.unlink()
                self._whole.discard(path)
        self._former[run] = new
        _keep_newest(folder, _RUNS)

    def reply(self, ask: Ask) -> tuple[Frame, Blob] | None:
        """Returns the reply that was given to the same question, if it is there."""
        with contextlib.suppress(OSError, ValueError):
            frame = unpack((self.place(ask) / _REPLY).read_bytes())
            digest, size = frame.digest(), frame.number("size", LARGEST)
            blob = Blob(digest, size, self.place(ask) / digest, self.key)
            whole = blob.is_whole
            if whole and size <= INLINE:  # else the server sees what a power cut has left
                whole = hashlib.sha256(blob.view()).hexdigest() == digest
            if whole and frame.text("mark") == ask.mark:
                return frame, blob
        return None

    def keep(
        self, ask: Ask, settings: Mapping[str, Any], content: Blob | Iterable[bytes | memoryview]
    ) -> tuple[Frame, Blob]:
        """Keeps a reply.

        Raises:
            OSError: It could not be written.
            ValueError: The settings are too long.
        """
        place = self.place(ask)
        blob = content if isinstance(content, Blob) else Blob.write(place, content, self.key)
        said = {"settings": dict(settings), "error": "", "reason": ""}
        frame = pack("reply", mark=ask.mark, digest=blob.digest, size=blob.size, **said)
        (place / _REPLY).write_bytes(frame)  # what a power cut takes is worked on once more
        for path in place.iterdir():
            if path.name not in (_REPLY, blob.path.name):
                path.unlink()
        _keep_newest(place, _REPLIES)
        _keep_newest(place.parent, _KINDS)
        _keep_newest(place.parent.parent, _RUNS)
        return unpack(frame), blob

    def forget(self, ask: Ask) -> None:
        """Removes a reply, which is damaged."""
        shutil.rmtree(self.place(ask), ignore_errors=True)

    def keep_only(self, runs: Iterable[str]) -> None:
        """Removes the files of all runs but these: they ended while the node was away."""
        names = {*map(_hashed, runs)}
        for folder in (self._contents, self._replies):
            for path in folder.glob("*"):
                if path.name not in names:
                    shutil.rmtree(path, ignore_errors=True)

    def over(self, run: str) -> None:
        """Removes all that belongs to a run."""
        for folder in (self._contents, self._replies):
            shutil.rmtree(folder / _hashed(run), ignore_errors=True)
        self._former.pop(run, None)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _keep_newest(last: Path, most: int) -> None:
    """Removes all but the newest entries of a folder, one of which has just changed."""
    now = time.time_ns()
    os.utime(last, ns=(now, now))  # the system's own times are too coarse
    if len(names := os.listdir(last.parent)) > most:
        others = [last.with_name(name) for name in names if name != last.name]
        others.sort(key=lambda path: path.stat().st_mtime_ns)
        for old in others[: len(names) - most]:
            shutil.rmtree(old, ignore_errors=True)
