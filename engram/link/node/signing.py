"""A node's signature on each of its calls to a SuperLink, together with the time."""

from collections.abc import Callable
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from engram.guards.clock import now
from engram.link.flower import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    public_key_to_bytes,
    sign_message,
)


class Signing(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Adds to each call the node's public key, the time, and the time's signature.

    Flower's own interceptor of this kind has gone with its gRPC client; its SuperLinks still ask
    for what it added.
    """

    def __init__(self, key: EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public_key = public_key_to_bytes(key.public_key())

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Makes a call with the signature in its metadata, as gRPC asks an interceptor to."""
        time = now().isoformat()
        signed = [
            *(details.metadata or []),
            (PUBLIC_KEY_HEADER, self._public_key),
            (TIMESTAMP_HEADER, time),
            (SIGNATURE_HEADER, sign_message(self._key, time.encode("ascii"))),
        ]
        return continuation(details._replace(metadata=signed), request)
