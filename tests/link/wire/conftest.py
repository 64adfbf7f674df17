"""A federation of two nodes in this process, which a file's tests share."""

from collections.abc import Iterator

import pytest

from tests.link.wire.processes import until
from tests.link.wire.together import NAMES, Lab, Together, together


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    """Yields a federation of two nodes."""
    with together(tmp_path_factory.mktemp("link") / "fed") as found:
        yield found


@pytest.fixture
def lab(fed: Together) -> Iterator[Lab]:
    """Yields a run of a federation whose nodes are there."""
    fed.start(*(n for n in ("server", *NAMES) if n not in fed.running or fed.running[n].done()))
    found = Lab(fed.folder)
    until(found.there)
    yield found
    found.link.close(over=True)
