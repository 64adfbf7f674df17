"""A site's policy in force, which its node's state keeps: a file that is gone opens nothing.

Rules that the file tightens hold at once. Where it drops or loosens one, as a file that was cut off
does, the former rule holds until the site accepts the change.
"""

import json
import os
import re
from datetime import datetime, timedelta
from functools import lru_cache
from logging import getLogger
from math import inf
from pathlib import Path
from typing import Any, Final

from engram.settings.errors import Refused
from engram.settings.fields import key_of
from engram.settings.files import read_json, replace_file
from engram.sites.policy import Policy, is_open, policy_file, read_policy
from engram.wire.checksums import checked, summed

_log = getLogger("flwr.engram")

_KEPT: Final = "policy.json"  # in a node's state
_ACCEPT: Final = "engram policy CLIENT_FOLDER --accept"
_MOST: Final = ("model_mib", "steps", "seconds", "mib", "rounds_a_day", "delta")
_ALLOW: Final = ("evaluate", "downloads")
_MOST_BUT_0: Final = ("clip", "epsilon")  # where 0 is no limit
_LEAST: Final = ("least_rows", "least_drawn", "least_count", "noise_multiplier", "secure")
_WILD: Final = re.compile(r"[*?\[]")
_DAY: Final = [datetime(2000, 1, 1) + timedelta(minutes=minute) for minute in range(1440)]


def in_force(path: Path | None, state: Path) -> tuple[Policy, list[str]]:
    """Returns a site's policy in force, and changes that wait for the site, in words.

    Args:
        path: As for ``read_policy``.
        state: The folder of the node's state.

    Raises:
        Refused: As ``read_policy``; or the site had a policy, and its file is gone; or what the
            state keeps of it is damaged.
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
    try:
        if accept and not there:
            place.unlink(missing_ok=True)
        elif accept or (there and policy != _kept(state)):
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            rules = policy.model_dump(mode="json", by_alias=True)
            kept = summed({"rules": rules, "file": str(path)})
            replace_file(place, json.dumps(kept).encode())
    except OSError as error:
        raise Refused(f"{place} cannot be written: {error.strerror}") from error
    return policy


def is_looser(rule: str, new: Any, old: Any) -> bool:
    """Whether a rule's new value may let in something that its old one does not."""
    if new == old:
        return False
    if rule in _MOST_BUT_0:
        new, old = new or inf, old or inf
    if rule in (*_MOST, *_MOST_BUT_0, *_ALLOW):
        return bool(new > old)
    if rule in (*_LEAST, "approval"):
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
