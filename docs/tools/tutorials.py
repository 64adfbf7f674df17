"""Makes the tutorials' pages: each script of docs/tutorials runs as a notebook, and is shown.

A cell that fails, or that writes to standard error, fails the build.
"""

import os
import re
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

SETUP = """
import logging, warnings
logging.disable(logging.INFO)
warnings.filterwarnings("ignore", message="IProgress")
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
%config InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Date": None}}
"""
SECONDS = 600  # for a cell, which takes a few on an idle machine
BASH = "%%bash\n"
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}


class Tutorial(File):
    """A script whose page is what it did as a notebook."""

    def is_documentation_page(self) -> bool:
        """A page, though its name ends in .py."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts a page, its figures and its notebook in the place of each script."""
    scripts = [file for file in files if re.fullmatch(r"tutorials/[\w-]+\.py", file.src_uri)]
    pages = [executed(Path(str(file.abs_src_path))) for file in scripts]
    for script, (notebook, source) in zip(scripts, pages, strict=True):
        files.remove(script)
        figures: dict[str, bytes] = {}
        stem = Path(script.src_uri).stem
        page = "\n\n".join(shown(notebook, stem, figures))
        files.append(Tutorial.generated(config, script.src_uri, content=page))
        for name, content in {**figures, f"{stem}.ipynb": source.encode()}.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def executed(script: Path) -> tuple[Any, str]:
    """Runs a script as a notebook, in an empty folder.

    Returns:
        The notebook with its outputs, and the text of the one without.
    """
    notebook = jupytext.read(script)
    source = nbformat.writes(notebook)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": commands, "NO_COLOR": "1", "COLUMNS": "96", "TERM": "dumb"}
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, resources=where)
        client.coalesce_streams = True
        client.extra_arguments = ["--IPKernelApp.log_level=ERROR"]
        try:
            client.execute(env=environment)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise PluginError(f"{script.name}: {error}") from error
    notebook.cells.pop(0)
    return notebook, source


def shown(notebook: Any, stem: str, figures: dict[str, bytes]) -> Iterator[str]:
    """Yields the parts of a page as Markdown, and adds to its figures, by name."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield cell.source
            continue
        language = "sh" if cell.source.startswith(BASH) else "python"
        yield f"```{language}\n{cell.source.removeprefix(BASH)}\n```"
        for output in cell.outputs:
            yield from printed(cell, output, stem, figures)
    download = f"[{stem}.ipynb]({stem}.ipynb)"
    yield f"---\n\nThis page is a notebook, and ran as the site was built: {download}."


def printed(cell: Any, output: Any, stem: str, figures: dict[str, bytes]) -> Iterator[str]:
    """Yields what a cell gave out: a figure, a table or text."""
    if output.output_type == "stream":
        if output.name == "stderr" and cell.source.startswith(BASH):
            return  # progress, as a terminal shows it; a command that fails has failed the cell
        if output.name == "stderr":
            raise PluginError(f"{stem}: a cell wrote to standard error: {output.text}")
        yield fenced(output.text)
        return
    data = output.data
    drawn = next((kind for kind in PICTURES if kind in data), None)
    if drawn:
        name = f"{stem}-{len(figures) + 1}.{PICTURES[drawn]}"
        text = data[drawn]
        figures[name] = b64decode(text) if drawn == "image/png" else text.encode()
        if "alt" not in cell.metadata:
            raise PluginError(f'{stem}: a cell with a figure needs words for it: # %% alt="..."')
        yield f"![{cell.metadata['alt']}]({name})"
    elif "text/html" in data and "<table" in data["text/html"]:
        (table,) = re.findall(r"<table.*</table>", data["text/html"], flags=re.DOTALL)
        yield re.sub(r"<(table|tr)\b[^>]*>", r"<\1>", table)
    else:
        yield fenced(data["text/plain"])


def fenced(text: str) -> str:
    """Returns text as a block of its own, without the colors that notebooks ask for."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text).strip("\n")
    return f"``` {{ .text .output }}\n{plain}\n```"
