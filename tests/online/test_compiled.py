"""What numba compiles: it is kept, or, where nothing can be written, compiled anew."""

import ast

from numba.core import caching

from engram.online import compiled_updates, steps, weights
from engram.online.compiled import compiled
from engram.settings.fingerprint import source_root


def double(x):
    return 2 * x


def test_without_a_place_for_what_is_compiled_it_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert compiled(double)(3.5) == 7.0
    assert not hasattr(compiled(double)._cache, "_impl")


def test_compiled_functions_call_those_of_their_own_file_only():
    # Numba would not see that another file has changed.
    for module in (compiled_updates, steps, weights):
        path = source_root() / f"{module.__name__.replace('.', '/')}.py"
        nodes = ast.walk(ast.parse(path.read_text()))
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        ours = {name for name in imported if name.startswith("engram")}
        # The former has types alone.
        assert ours - {"engram.core.arrays"} == {"engram.online.compiled"}, module
