"""Completes pages from code and results: each method's, and tables of methods and settings."""

import re
from typing import Any

from engram.cli.options import settings_rows
from engram.settings.base import GROUPS, SharedSettings
from engram.settings.families import METHODS
from engram.settings.fields import Settings, key_of

TABLE = re.compile(r"^(\|.*\n)(\|[-|]+\n)((?:\|.*\n)+)", re.MULTILINE)
GROUP = re.compile(r"^<!-- (\w+Settings) -->$", re.MULTILINE)  # where the table of a group stands
REFERENCES = ("local`", "fedavg` |", "fedavg` + fine-tuning", "fedavg`, the common model")


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Adds to a method's page, and to that of settings, what is known elsewhere."""
    if page.file.src_uri == "settings.md":
        return shared_settings(markdown)
    if page.file.src_uri == "methods.md":
        return markdown.replace("<!-- methods -->", all_methods())
    room, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    if room != "methods" or name not in METHODS:
        return markdown
    results = files.get_file_from_path("results.md").content_string
    title, _, text = markdown.partition("\n")
    parts = [title, described(name), text.strip(), settings(name), measured(name, results)]
    return "\n\n".join(part for part in parts if part)


def all_methods() -> str:
    """Returns the table of all methods."""
    head = ["| method | what it does | source |", "|---|---|---|"]
    rows = (
        f"| [`{name}`](methods/{name}.md) | {method.meaning} | {method.source} |"
        for name, method in METHODS.items()
    )
    return "\n".join([*head, *rows])


def described(name: str) -> str:
    """Returns a method's description and source."""
    method = METHODS[name]
    source = f" *Source: {method.source}.*" if method.source else ""
    return f"**`{name}`**: {method.meaning}.{source}"


def table_of(group: type[Settings], *, searched: bool = True) -> str:
    """Returns the table of a group's settings, with the ranges that are searched or without."""
    head = ["setting", "default", "range", "searched", "meaning"]
    rows = [
        [f"`{key}`", f"`{default}`", span, search, meaning.replace("*", r"\*")]
        for key, default, span, search, meaning in settings_rows(group)
    ]
    lines = [head, ["---"] * len(head), *rows]
    cells = (line if searched else [*line[:3], line[4]] for line in lines)
    return "\n".join(f"| {' | '.join(each)} |" for each in cells)


def shared_settings(markdown: str) -> str:
    """Puts the table of each group in its place."""
    groups = {group.__name__: group for group in GROUPS}
    return GROUP.sub(lambda found: table_of(groups[found[1]], searched=False), markdown)


def settings(name: str) -> str:
    """Returns the table of a method's own settings, and the shared ones that it does not read."""
    method = METHODS[name]
    unread = [f"`{key_of(key)}`" for key in SharedSettings.model_fields if key in method.unread]
    words = ["## Settings", table_of(method)]
    if unread:
        words.append(f"Shared settings that it does not read: {', '.join(unread)}.")
    words.append("[Settings](../settings.md) has those that methods share.")
    return "\n\n".join(words)


def measured(name: str, results: str) -> str:
    """Returns the rows about a method in the tables of the page of results, by their sections."""
    found = []
    for section in re.split(r"^(?=##+ )", results, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0].strip("# ")
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for head, line, body in TABLE.findall(section):
            rows = body.splitlines()
            own = [row for row in rows if row.startswith(f"| `{name}`")]
            others = [row for row in rows if row.startswith(tuple(f"| `{r}" for r in REFERENCES))]
            if own:
                kept = [row for row in rows if row in own or row in others]
                table = head + line + "\n".join(kept)
                link = f"[{title}](../results.md#{anchor})"
                found.append(f"From {link}, which says what was measured:\n\n{table}")
    return "\n\n".join(["## Measured here", *found]) if found else ""
