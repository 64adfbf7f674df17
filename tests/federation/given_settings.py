"""The types of settings that are given by name, for editors, as the settings' classes have them."""

import json
import textwrap
from pathlib import Path
from typing import Literal, get_args, get_origin

from engram.cli.python_arguments import FUNCTIONS
from engram.settings.experiment import ARGUMENTS
from engram.settings.families import METHODS
from engram.settings.shared import SharedSettings

STUB = Path(__file__).parents[2] / "engram" / "settings" / "given.pyi"
HEAD = '''"""Settings as they are given by name: for editors and type checkers.

Written from the settings' classes by ``python -m tests.federation.pyproject_tables``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

MethodName: TypeAlias = {names} | str

class Given(TypedDict, total=False):
    """Settings that methods share, and those that are some methods' own."""
'''


FUNCTION = "str | Callable[..., Any]"
GIVEN_ITSELF = {"model": FUNCTION, "metrics": f"{FUNCTION} | Sequence[{FUNCTION}]"}
GIVEN_ITSELF |= dict.fromkeys(("eta", "weight_decay"), "float | Mapping[str, float]")
GIVEN_ITSELF |= {key.replace("-", "_"): FUNCTION for key in FUNCTIONS}


def stub() -> str:
    """Returns the file as it should be."""
    lines = [HEAD.format(names=_literal(METHODS))]
    for name, field in SharedSettings.model_fields.items():
        if name not in ARGUMENTS:
            lines += _entry(name, [field.annotation], [field.description])
    owners = {name: [] for method in METHODS.values() for name in method.model_fields}
    for method in METHODS.values():
        for name, field in method.model_fields.items():
            owners[name].append((method.name, field))
    for name, found in owners.items():
        meanings = {}
        for owner, field in found:
            meanings.setdefault(field.description, []).append(owner)
        texts = [f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items()]
        lines += _entry(name, [field.annotation for _, field in found], texts)
    return "\n".join(lines) + "\n"


def _entry(name, kinds, meanings):
    kind = GIVEN_ITSELF.get(name) or " | ".join(dict.fromkeys(map(_in_words, kinds)))
    text = f'"""{"; ".join(meanings)}."""'
    return [f"    {name}: {kind}", textwrap.indent("\n".join(textwrap.wrap(text, 92)), "    ")]


def _in_words(kind):
    return _literal(get_args(kind)) if get_origin(kind) is Literal else kind.__name__


def _literal(values):
    return f"Literal[{', '.join(map(json.dumps, values))}]"
