"""A federation to test with, in the working folder."""

from pathlib import Path

from engram.link.server.identity import init_federation

FED = Path("fed")
GIVEN = {"clients": 2, "hosts": ["b.example.org"], "superlink": "a.example.org:9092", "days": 30}


def make(name="fed", **change):
    init_federation(Path(name), **(GIVEN | change))
