"""A family of methods is a plug-in under the same key in each room, and no other file knows it."""

import ast
import re

import pytest

from engram.settings.families import METHODS
from engram.settings.fingerprint import source_root
from tests.registries import FAMILIES
from tests.source import ROOMS, source_files

ROOT = source_root()
# "local" is an ordinary word, too: of privacy, and of statistics.
NAMES = sorted(METHODS.keys() - {"local"}, key=len, reverse=True)
NAME = re.compile(rf"(?<![\w.-])({'|'.join(NAMES)})(?![\w-])")
# Files of a family, and studies, which name what they reproduce. Benchmarks, which name what they
# race, are no room here.
OWN = re.compile(
    "engram/(methods|settings|studies|(tables(/survival)?|bandits|online|meta)/(federation|studies))/"
    r"|client/hosts/local\.py|strategies/running/network_strategy\.py|engram/compare/reports/local\.py"
)


def strings(path):
    """Yields the strings of a file that are not documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if "__all__" not in ast.unparse(node)[:7]]
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documentation:
            yield node.lineno, node.value


def imported(path):
    """Returns the files of ours that a file imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
        for name in names:
            place = ROOT.joinpath(*name.split("."))
            for candidate in (place.with_suffix(".py"), place / "__init__.py"):
                if candidate.is_file():
                    found.add(candidate.resolve())
    return found


def test_every_room_has_the_same_families():
    families = {method.plug_in for method in METHODS.values()}
    for known in FAMILIES:
        assert all(known[family] for family in families)
        assert families == known.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_a_methods_name_stands_in_its_familys_files_only(room):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in source_files(room)
        if not OWN.match(path.relative_to(ROOT).as_posix())
        for line, text in strings(path)
        if (match := NAME.search(text))
    ]
    assert not found


def test_no_files_import_each_other_in_a_circle():
    # Rooms are at the root, and linked into the package: each file by one path.
    files = source_files(*ROOMS, "benchmarks")
    graph = {path.resolve(): imported(path) for path in files}
    # A package's __init__ that makes its plug-ins known is imported with each of them.
    graph = {p: {q for q in others if q != p.parent / "__init__.py"} for p, others in graph.items()}
    state = {}

    def visit(path, trail):
        if state.get(path) == "done":
            return
        assert path not in trail, [*map(str, trail), str(path)]
        for other in sorted(graph.get(path, ())):
            visit(other, [*trail, path])
        state[path] = "done"

    for path in graph:
        visit(path, [])
