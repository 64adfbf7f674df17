"""Measures of what a reader meets, by the source; each has a ceiling that may only fall."""

import ast
import re
from collections import Counter, defaultdict
from itertools import chain

import pytest

from tests.source import ROOMS, source_files
from tests.test_house import ROOT

RETURNS = re.compile(
    r"(Returns|Yields|Gives|Says|Tells)\b[^.]*?\b(what|which|how|whose|whom|who)\b"
)
VAGUE = re.compile(r"\b(what|whatever|whoever|whose)\b", re.IGNORECASE)
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


@pytest.fixture(scope="module")
def nodes():
    """The syntax of the product: all nodes of a class, by the class."""
    found = defaultdict(list)
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found[type(node)].append(node)
    return found


def calls(nodes, *names):
    names_of = ((c, getattr(c.func, "id", getattr(c.func, "attr", ""))) for c in nodes[ast.Call])
    return [call for call, name in names_of if name in names]


def lines(*folders):
    return sum(path.read_text(encoding="utf-8").count("\n") for path in source_files(*folders))


@pytest.mark.parametrize(
    ("folders", "most"), [(ROOMS, 98_291), (["benchmarks"], 4_596), (["tests"], 83_164)]
)
def test_lines(folders, most):
    assert lines(*folders) <= most


def test_folders_are_neither_large_nor_tiny():
    files = Counter(path.parent.relative_to(ROOT).as_posix() for path in source_files())
    assert {folder for folder, number in files.items() if number > 20} <= {"engram/methods"}


def test_imports_inside_functions(nodes):
    inside = {
        id(node)
        for function in chain(*(nodes[kind] for kind in FUNCTIONS))
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert len(inside) <= 83
    assert len(calls(nodes, "import_module", "__import__")) <= 21


def test_a_rule_between_two_settings_stands_once(nodes):
    assert len(calls(nodes, "clash")) <= 49


def test_code_does_not_ask_for_classes_of_ours(nodes):
    classes = {node.name for node in nodes[ast.ClassDef]}
    asked = [
        call
        for call in calls(nodes, "isinstance")
        if any(getattr(x, "id", getattr(x, "attr", "")) in classes for x in ast.walk(call.args[1]))
    ]
    assert len(asked) <= 93
    assert len(nodes[ast.MatchClass]) <= 10


def test_calls_name_their_arguments(nodes):
    unpacked = [k for k in nodes[ast.keyword] if k.arg is None and isinstance(k.value, ast.Name)]
    assert len(unpacked) <= 58


def test_docstrings_say_what_they_are_about_first(nodes):
    kinds = (ast.Module, ast.ClassDef, *FUNCTIONS)
    docs = [ast.get_docstring(node) for kind in kinds for node in nodes[kind]]
    firsts = [re.split(r"(?<=[.?])\s", " ".join(doc.split()))[0] for doc in docs if doc]
    assert sum(bool(RETURNS.match(first) or VAGUE.search(first)) for first in firsts) <= 20
