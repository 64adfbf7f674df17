"""Serves the board: on the loopback interface, or elsewhere with a token and TLS."""

import hmac
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

from flask import Flask, Response, abort, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from engram.link.addresses import LOOPBACK, Address
from engram.settings.errors import Refused, one_line
from engram.studio.http_limits import BoundedServer, LateHandshake

_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "worker-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "object-src 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,  # nothing is loaded from, or told to, another machine
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # an address may hold the token
}


def guard(app: Flask, at: Address, token: str | None) -> None:
    """Lets in only those who may look.

    Without a token, a request must name this machine as its host, so that no page of another site
    can read the board through a visitor's browser. With one, it must come once in the address, as
    ``?token=...``, and is then kept by the browser in a cookie.
    """
    cookie = f"engram-board-{at.port}"  # browsers send cookies to every port of a host

    @app.before_request
    def check() -> BaseResponse | None:
        if token is None:
            if urlsplit(f"//{request.host}").hostname not in (*LOOPBACK, at.host):
                abort(403, "The board is for this machine.")
            return None
        if _same(request.cookies.get(cookie, ""), token):
            return None
        if not _same(request.args.get("token", ""), token):
            abort(403, "The board needs its token: open the address that engram board printed.")
        answer = redirect(_without_token())
        answer.set_cookie(cookie, token, httponly=True, samesite="Lax", secure=request.is_secure)
        return answer

    @app.after_request
    def harden(answer: Response) -> Response:
        answer.headers.update(_HEADERS)
        return answer


def server_of(
    app: Flask, at: Address, tls: tuple[Path, Path] | None, token: str | None
) -> BoundedServer:
    """Returns the server of a board, ready to start, with the files of a certificate and its key.

    Raises:
        Refused: It would be reachable from other machines without TLS and a token, or the
            certificate or its key cannot be used.
    """
    if not at.is_loopback and (tls is None or token is None):
        raise Refused(
            f"--listen {at} can be reached from other machines: give --certificate and --key, too"
        )
    guard(app, at, token)
    server = BoundedServer((at.host, at.port), app)
    if tls is not None:
        try:
            server.ssl_adapter = LateHandshake(*map(str, tls))
        except (OSError, ValueError) as error:
            told = one_line(str(error))
            raise Refused(
                f"{tls[0]} and {tls[1]} are no certificate and its key: {told}"
            ) from error
    return server


def _without_token() -> str:
    kept = [(k, v) for k, v in request.args.items(multi=True) if k != "token"]
    return f"/{request.path.lstrip('/')}{'?' * bool(kept)}{urlencode(kept)}"


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
