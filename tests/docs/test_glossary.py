"""The glossary: its names are in the code, and the words that it declares gone are nowhere."""

import importlib
import importlib.util
import re

from engram.settings.fingerprint import source_root
from tests.samples import entry
from tests.source import source_files

ROOT = source_root()
DOCS = ROOT / "docs"
TEXT = (DOCS / "glossary.md").read_text(encoding="utf-8")
TERMS, _, GONE = TEXT.partition("## Words that are gone")
MOVING = re.compile(r"## Moving from LocalRule.*?(?=\n## )", flags=re.DOTALL)
REFUSED = {  # names of older versions, which are refused by name
    "engram/__init__.py": {"LocalRule", "LocalMethod"},
    "engram/settings/plugins.py": {"LocalRule"},
}


def entries():
    """Returns the terms and their texts."""
    return re.findall(
        r"^\*\*(.+?)\*\*(.*?)(?=^\*\*|^## |\Z)", TERMS, flags=re.DOTALL | re.MULTILINE
    )


def gone():
    """Returns the words of the first column of the table at the end."""
    rows = re.findall(r"^\| (`.*?) \|", GONE, flags=re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


def sources():
    """Yields all modules and pages, by path, without the page on moving from older versions."""
    for path in source_files():
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT).as_posix()
        yield name, TERMS if path.name == "glossary.md" else MOVING.sub("", text)


def test_names_of_the_glossary_are_there():
    for name in re.findall(r"`(engram(?:\.\w+)+)`", TERMS):
        *outer, last = name.split(".")
        with entry(name):
            try:
                owner = importlib.import_module(".".join(outer))
            except ModuleNotFoundError:  # the last but one is a class
                owner = getattr(importlib.import_module(".".join(outer[:-1])), outer[-1])
            known = hasattr(owner, last) or last in owner.__annotations__
            assert known or importlib.util.find_spec(name)


def test_terms_are_in_order_and_have_one_entry():
    names = [name.split(",")[0].lower() for name, _ in entries()]
    assert names == sorted(set(names))
    assert {"slot", "received", "kept", "sent", "task", "part", "local", "way"} <= set(names)


def test_words_that_are_gone_occur_nowhere():
    words = {word.lower(): word for word in gone()}
    assert len(words) > 5
    any_of = re.compile(rf"(?<![\w/-])({'|'.join(map(re.escape, words))})", flags=re.IGNORECASE)
    left = {
        (path, words[word.lower()])
        for path, text in sources()
        for word in any_of.findall(text)
        if words[word.lower()] not in REFUSED.get(path, ())
    }
    assert sorted(left) == []
