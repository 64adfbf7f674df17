"""Writes the JSON Schema of release records: docs/release.schema.json.

``python docs/tools/release_schema.py``; a test compares it.
"""

import json
from pathlib import Path

from engram.runs.release import Release


def schema() -> str:
    """Returns the contents of the file."""
    address = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(address | Release.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    place = Path(__file__).parents[1] / "release.schema.json"
    place.write_text(schema(), encoding="utf-8")
