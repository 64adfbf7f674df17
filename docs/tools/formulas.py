"""Turns formulas into MathML, which browsers show without a script: nothing is fetched."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    """Replaces what pymdownx.arithmatex has found: formulas in lines, and in blocks."""

    def mathml(found: re.Match[str]) -> str:
        _, inline, block = found.groups()
        display = "inline" if block is None else "block"
        return convert(html.unescape(inline if block is None else block).strip(), display=display)

    return FORMULA.sub(mathml, content)
