"""The machine's clock, and, in words, how it differs from another one, or from a certificate."""

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

_UNITS: Final = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def now() -> datetime:
    """Returns the time of this machine's clock, in UTC."""
    return datetime.now(UTC)


def stamp(at: datetime) -> str:
    """Returns a time for a message, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def in_words(difference: timedelta) -> str:
    """Returns a time difference in words, such as ``7 minutes``."""
    seconds = abs(difference.total_seconds())
    name, size = next((n, s) for n, s in _UNITS.items() if seconds >= 2 * s or s == 1)
    return f"{seconds / size:.0f} {name}"


def outside(certificate: x509.Certificate, at: datetime, remedy: str) -> str | None:
    """Describes a time outside of a certificate's validity; None if it is within.

    ``remedy`` is for an expired certificate, if the clock ``at`` is right.

    Returns:
        The end of a sentence that begins with the certificate.
    """
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    says = f"and this machine's clock says {stamp(at)},"
    if at < begins:
        apart = f"{in_words(begins - at)} earlier: set the clock that is wrong"
        return f"is not valid before {stamp(begins)}, {says} {apart}"
    if at > ends:
        apart = f"{in_words(at - ends)} later: set the clock if it is wrong, or {remedy}"
        return f"expired on {stamp(ends)}, {says} {apart}"
    return None
