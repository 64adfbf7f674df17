"""The rows of a node's data, known again by digests that stay at the site.

A digest of a small table confirms a guess of its cells. So it has a key, which is in the node's
state and nowhere else.
"""

import secrets
from collections.abc import Iterable
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Final

from engram.data.readers.digests import Rows, digest_of, keyed, rows_of
from engram.data.source import Source
from engram.link.node_config import NodeConfig
from engram.settings.errors import Refused
from engram.settings.files import read_file, refusing, replace_file

_log = getLogger("flwr.engram")

_KEY: Final = "rows.key"  # in the node's state
_BYTES: Final = 32
_OTHERS: Final = (
    "%s has other rows than those that training %s has learned from: this client takes no part in "
    "it until its node is started with --rows-changed"
)


def own_digest(sources: Iterable[Source], state: Path) -> str:
    """Returns a digest of data sets that means nothing without the site's key.

    Raises:
        OSError: A file cannot be read.
        Refused: The key cannot be read, or written.
    """
    return keyed(digest_of(sources), _key(state))


def admitted_rows(
    sources: Iterable[Source], config: NodeConfig, state: Path, training: str, last: Rows | None
) -> Rows | None:
    """Returns the rows that a training learns from now; None where no file has them.

    ``last`` are the rows that it has learned from so far; None if it has not, or it is not
    known.

    Raises:
        Refused: They are others than ``last``, and the site's operator has not said that they are.
    """
    some = [source for source in sources if source.unpermuted.is_file]
    if not some:
        return None
    now = rows_of(some, _key(state), last)
    if now and last and now.digest != last.digest and not config.rows_changed:
        _say_once(_OTHERS % (", ".join(map(str, some)), training))
        raise Refused("this node's data cannot be used: its log says why")
    return now


def has_other_rows(last: Rows, state: Path) -> bool:
    """Whether data sets have changed, as far as that is known."""
    return last.now(_key(state)).digest != last.digest


@cache
def _say_once(text: str) -> None:
    _log.error("%s", text)


def _key(state: Path) -> bytes:
    path = state / _KEY
    with refusing(f"{path} cannot be used"):
        if not path.exists():
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, secrets.token_bytes(_BYTES))
        return read_file(path, most=_BYTES, links=False)
