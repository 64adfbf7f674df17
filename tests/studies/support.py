"""Commands of studies."""

from typer.testing import CliRunner

from engram.cli.cli import app


def reproduce(study, *arguments, out=None):
    """Runs ``engram reproduce``, whose errors come as they are raised; jobs in this process."""
    words = [study, *map(str, arguments), *([] if out is None else ["--out", str(out)])]
    if study not in ("molar-table", "universal-stream"):  # which have no jobs
        words += ["--processes", "1"]
    return CliRunner().invoke(app, ["reproduce", *words])
