"""A site's policy: the limits that its node holds every server to.

It is a TOML file that the site writes. Where there is none, or a rule is missing, defaults hold::

    methods = ["fedavg", "molar*"]
    steps = 500
    hours = "20:00-06:00"
    privacy = ["local"]
    noise-multiplier = 1.0
    approval = true

The file is read anew for every message. A node's state keeps the policy in force: rules that the
file tightens hold at once; where it drops or loosens one, as a file that was cut off does, the
former rule holds until the site accepts the change. A file that is gone opens nothing.
"""

import hashlib
import json
import os
import re
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from logging import getLogger
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from engram.core.checks import require
from engram.settings.errors import Refused, few_names, one_line
from engram.settings.fields import Float, Int, Settings, key_of, nearest, wrong_values
from engram.settings.files import read_json, refusing, replace_file, sorted_json
from engram.settings.settings_files import read_settings
from engram.wire.checksums import checked, summed

POLICY: Final = "policy.toml"  # the file's name in a client's folder

_log = getLogger("flwr.engram")

_KEPT: Final = "policy.json"  # in a node's state
_ACCEPT: Final = "engram policy CLIENT_FOLDER --accept"
_MOST: Final = ("model_mib", "steps", "seconds", "mib", "rounds_a_day", "delta")
_ALLOW: Final = ("evaluate", "downloads")
_MOST_BUT_0: Final = ("clip", "epsilon")  # where 0 is no limit
_LEAST: Final = ("least_rows", "least_drawn", "least_count", "noise_multiplier", "secure")
_WILD: Final = re.compile(r"[*?\[]")
_DAY: Final = [datetime(2000, 1, 1) + timedelta(minutes=minute) for minute in range(1440)]
_HOUR: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"


def _hours(value: str) -> str:
    fits = not value or re.fullmatch(f"{_HOUR}-{_HOUR}", value, re.ASCII)
    require(bool(fits), "hours", value, "HH:MM-HH:MM in UTC, such as 20:00-06:00")
    return value


class Policy(Settings):
    """Limits of a site; allowed names may have ``*`` for any characters."""

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
    release: bool = Field(
        False, description="whether models are exported only with a release that all sites sign"
    )

    @property
    def digest(self) -> str:
        """SHA-256 of all rules, as sorted JSON."""
        return hashlib.sha256(sorted_json(self.model_dump(mode="json", by_alias=True))).hexdigest()


USUAL: Final = Policy.model_validate({})  # the policy of a site that has no file

UNLIMITED: Final = Policy.model_construct(
    **USUAL.model_dump()
    | dict.fromkeys(("model_mib", "steps", "seconds", "mib", "rounds_a_day"), inf)
    | {"least_count": 1, "least_drawn": 1}
)
"""The policy of a simulation's nodes, whose data are the server's."""


def policy_file(path: Path) -> Path | None:
    """Returns a policy's file, given it or a client's folder; None if that has none."""
    if not path.is_dir():
        return path
    file = path / POLICY
    return file if file.exists() or file.is_symlink() else None  # a link to nothing is no default


def read_policy(path: Path | None) -> Policy:
    """Reads a policy; without a file it has its defaults.

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
    """Whether a time in UTC lies within hours, which may pass midnight.

    They go from the first up to the second; the same time twice is the whole day.
    """
    if not hours:
        return True
    begin, end = (time.fromisoformat(part) for part in hours.split("-"))
    now = at.time()
    return begin <= now < end if begin < end else now >= begin or now < end


def in_force(path: Path | None, state: Path) -> tuple[Policy, list[str]]:
    """Returns a site's policy in force, and changes that wait for the site, in words.

    Raises:
        Refused: As ``read_policy``; or the site had a policy, and its file is gone; or the policy
            that the node's state keeps is damaged.
    """
    if (kept := _kept(state)) is None:
        return read_policy(path), []
    if path is None or (file := policy_file(path)) is None:
        raise Refused(
            f"this site's policy is gone: its operator puts it back, or does without by {_ACCEPT}"
        )
    given = read_policy(file)  # not of its folder, which has the defaults if it is gone by now
    pairs = {name: (getattr(given, name), getattr(kept, name)) for name in Policy.model_fields}
    looser = {name: pair for name, pair in pairs.items() if is_looser(name, *pair)}
    waits = [f"{key_of(n)} stays {old}, and {new} waits" for n, (new, old) in looser.items()]
    return given.model_copy(update={name: old for name, (_, old) in looser.items()}), waits


def keep_policy(path: Path | None, state: Path, *, accept: bool = False) -> Policy:
    """Returns a site's policy in force, and keeps it in the node's state.

    With ``accept`` this is what its file says, whatever was in force.

    Raises:
        Refused: As ``in_force``; or it cannot be kept.
    """
    policy, waits = (read_policy(path), list[str]()) if accept else in_force(path, state)
    for wait in waits:
        _warn(state, wait)
    place, there = state / _KEPT, path is not None and policy_file(path) is not None
    with refusing(f"{place} cannot be written"):
        if accept and not there:
            place.unlink(missing_ok=True)
        elif accept or (there and policy != _kept(state)):
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            rules = policy.model_dump(mode="json", by_alias=True)
            kept = summed({"rules": rules, "file": str(path)})
            replace_file(place, json.dumps(kept).encode())
    return policy


def is_looser(rule: str, new: Any, old: Any) -> bool:
    """Whether a rule's new value may let in something that its old one does not."""
    if new == old:
        return False
    if rule in _MOST_BUT_0:
        new, old = new or inf, old or inf
    if rule in (*_MOST, *_MOST_BUT_0, *_ALLOW):
        return bool(new > old)
    if rule in (*_LEAST, "approval", "release"):
        return bool(new < old)
    if rule == "hours":
        return any(is_open(new, at) and not is_open(old, at) for at in _DAY)
    if not isinstance(new, tuple) or (rule == "privacy" and ("example",) in (new, old)):
        return True  # epsilon is of rows then, and no longer of clients, or the reverse
    # Of wildcards, those of old names that begin with some letters and end with * are compared.
    wide = tuple(name[:-1] for name in old if name[-1:] == "*" and not _WILD.search(name[:-1]))
    return not all(name in old or _WILD.split(name)[0].startswith(wide) for name in new)


def kept_file(state: Path) -> Path | None:
    """Returns the file or folder of the policy that a node's state keeps; None if it keeps none."""
    path = state / _KEPT
    found = checked(read_json(path)) if path.is_file() else None
    return Path(found["file"]) if found and "file" in found else None


@lru_cache(maxsize=64)  # the file is read anew for every message
def _warn(state: Path, wait: str) -> None:
    _log.warning("policy of %s: %s: its operator accepts it by %s", state, wait, _ACCEPT)


def _kept(state: Path) -> Policy | None:
    path, known = state / _KEPT, Policy.all_keys()
    if not os.path.lexists(path):
        return None
    if (found := checked(read_json(path))) is None:
        raise Refused(f"{path} is damaged: its operator accepts the policy by {_ACCEPT}")
    return Policy.model_validate({k: value for k, value in found["rules"].items() if k in known})
