"""``engram board``: a web page over a folder of runs."""

import secrets
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from engram.cli.console import out
from engram.cli.optional_packages import need
from engram.link.addresses import CONTROL, parse_address
from engram.link.credentials import read_server
from engram.link.server.launch import check_free
from engram.settings.errors import Refused
from engram.settings.process_starts import end_at_once

__all__ = ["app"]

_AT: Final = "127.0.0.1:8765"
_SHORTEST: Final = 16  # characters of a token

app = typer.Typer()


@app.command()
def board(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Default runs.")] = Path(
        "runs"
    ),
    federation: Annotated[
        Path | None,
        typer.Option(metavar="SERVER_FOLDER", help="The folder `server` of a live federation."),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Where users reach its SuperLink; by default {CONTROL}."
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where it listens.")] = _AT,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A certificate, for HTTPS.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the token that visitors need. By default there is none on this "
            "machine's own interface, and a new one at each start elsewhere.",
        ),
    ] = None,
) -> None:
    """Serve a web page over a folder of runs, and over a live federation."""
    need("dash", "board")
    at = parse_address(listen, "--listen")
    token = _token(token_file) if token_file or at.is_loopback else secrets.token_urlsafe(24)
    if (certificate is None) != (key is None):
        raise Refused("--certificate and --key must be given together")
    if federation is not None:
        read_server(federation)
    with end_at_once():
        from engram.studio.app import board as make
        from engram.studio.live import Federation
        from engram.studio.run_index import Shelf
        from engram.studio.serving import server_of
    shelf = Shelf(folder)
    check_free(at, "--listen")
    shelf.everything()  # so that the first visitor need not wait
    app = make(shelf, Federation(federation, control) if federation else None)
    tls = (certificate, key) if certificate and key else None
    server = server_of(app.server, at, tls, token)
    secret = f"?token={quote(token, safe='')}" if token else ""
    out.print(f"board: http{'s' if tls else ''}://{at.reached_at}/{secret}", soft_wrap=True)
    out.print("Ctrl-C ends it.")
    try:
        server.start()
    except KeyboardInterrupt:
        server.stop()


def _token(file: Path | None) -> str | None:
    """Returns the token in a file; None if there is none.

    Raises:
        Refused: It cannot be read, or its token is too short.
    """
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Refused(f"--token-file {file} cannot be read: {error}") from error
    if len(token) < _SHORTEST:
        raise Refused(f"--token-file must hold at least {_SHORTEST} characters, got {len(token)}")
    return token
