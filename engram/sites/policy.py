"""A site's policy: the limits that its node holds every server to.

It is a TOML file that the site writes. Where there is none, or a rule is missing, defaults hold::

    methods = ["fedavg", "molar*"]
    steps = 500
    hours = "20:00-06:00"
    privacy = ["local"]
    noise-multiplier = 1.0
    approval = true

The file is read anew for every message: see ``engram.sites.accepted``.
"""

import re
from datetime import datetime, time
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from engram.core.checks import require
from engram.settings.errors import Refused, few_names, one_line
from engram.settings.fields import Float, Int, Settings, nearest, wrong_values
from engram.settings.settings_files import read_settings

POLICY: Final = "policy.toml"
"""The file's name in a client's folder."""

_HOUR: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"


def _hours(value: str) -> str:
    fits = not value or re.fullmatch(f"{_HOUR}-{_HOUR}", value, re.ASCII)
    require(bool(fits), "hours", value, "HH:MM-HH:MM in UTC, such as 20:00-06:00")
    return value


class Policy(Settings):
    """Limits of a site; names of what is allowed may have ``*`` for any characters."""

    methods: tuple[str, ...] = Field(("*",), description="methods that may train")
    plugins: tuple[str, ...] = Field(("*",), description="plug-ins that may be loaded meanwhile")
    datasets: tuple[str, ...] = Field(
        ("*",), description="data sets that a run may name, where the site has no --data"
    )
    downloads: bool = Field(
        False, description="whether such a data set is downloaded, if it is not there"
    )
    model_mib: Float = Field(1024, gt=0, description="largest model that is received or sent, MiB")
    steps: Int = Field(100_000, ge=1, description="most steps of a client in a round")
    seconds: Float = Field(86400, gt=0, description="most seconds of work for a round")
    mib: Float = Field(4096, gt=0, description="most MiB of a round, received and sent together")
    rounds_a_day: Int = Field(100_000, ge=0, description="most rounds of training in a day of UTC")
    hours: Annotated[str, AfterValidator(_hours)] = Field(
        "", description="when it works, in UTC, such as 20:00-06:00; empty: always"
    )
    least_rows: Int = Field(1, ge=1, description="fewest rows that a client trains on")
    least_drawn: Int = Field(
        2,
        ge=1,
        description="fewest different rows of an update of a network, unless noise of the "
        "client's own hides them; an update of one row may give it away",
    )
    least_count: Int = Field(
        5,
        ge=1,
        description="fewest rows behind each figure or value that engram schema is told; and "
        "behind scores, of a given model 10 at least",
    )
    evaluate: bool = Field(True, description="whether scores of its rows are sent")
    privacy: tuple[Literal["none", "local", "central", "example"], ...] = Field(
        ("none", "local", "central", "example"), description="settings of privacy that will do"
    )
    noise_multiplier: Float = Field(
        0, ge=0, description="least noise-multiplier where there is privacy"
    )
    clip: Float = Field(0, ge=0, description="largest clip; 0: updates need not be clipped")
    epsilon: Float = Field(
        0,
        ge=0,
        description="most epsilon that all answers together spend of its data, over all runs; 0: "
        "no total. With a total, it answers what it can account for: privacy=local; or of single "
        'rows, privacy=example, where privacy is ["example"]',
    )
    delta: Float = Field(1e-05, gt=0, lt=1, description="delta of that epsilon")
    secure: Int = Field(
        0, ge=0, description="fewest sites in whose sum an update may leave; 0: it may leave alone"
    )
    approval: bool = Field(False, description="whether each training waits for engram approve")


USUAL: Final = Policy.model_validate({})
"""The policy of a site that has no file."""

UNLIMITED: Final = Policy.model_construct(
    **USUAL.model_dump()
    | dict.fromkeys(("model_mib", "steps", "seconds", "mib", "rounds_a_day"), inf)
    | {"least_count": 1, "least_drawn": 1}
)
"""The policy of a simulation's nodes, whose data are the server's."""


def policy_file(path: Path) -> Path | None:
    """Returns the file of a policy; None if a client's folder has none.

    Args:
        path: The file, or a client's folder.
    """
    if not path.is_dir():
        return path
    file = path / POLICY
    return file if file.exists() or file.is_symlink() else None  # a link to nothing is no default


def read_policy(path: Path | None) -> Policy:
    """Reads a policy; without a file it has its defaults.

    Args:
        path: As for ``policy_file``; None for the defaults.

    Raises:
        Refused: The file cannot be read, has no rule, or one that is unknown or impossible.
    """
    file = policy_file(path) if path is not None else None
    if file is None:
        return USUAL
    rules, known = read_settings(file), Policy.all_keys()
    if not rules:
        raise Refused(f"{file} has no rule: its site writes one, or deletes it for the defaults")
    strange = [f"{one_line(key)} is no rule{nearest(key, known)}" for key in rules.keys() - known]
    if strange:
        raise Refused(f"{file}: {few_names(sorted(strange))}; rules are {', '.join(known)}")
    try:
        return Policy.model_validate(rules)
    except ValidationError as error:
        told = "; ".join(fault.text for fault in wrong_values(error))
        raise Refused(f"{file}: {told}") from error


def is_allowed(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name is among those that some patterns stand for."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_open(hours: str, at: datetime) -> bool:
    """Whether a time lies within hours, which may pass midnight: from the first up to the second.

    Args:
        hours: As in ``Policy``; the same time twice is the whole day.
        at: The time, in UTC.
    """
    if not hours:
        return True
    begin, end = (time.fromisoformat(part) for part in hours.split("-"))
    now = at.time()
    return begin <= now < end if begin < end else now >= begin or now < end
