"""Decides whether a run is within a site's policy: by its settings, its data, and its models.

Each function returns everything that the policy has against a run. Settings are looked at before
data are read, and rows and the sizes of models before a model is made.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from engram.core.method_shapes import nbytes
from engram.data.federated import model_for, parameters_for
from engram.data.loading import without_downloads
from engram.data.schema.columns import Kind, Schema
from engram.data.schema.declared import declare
from engram.data.source import HUB, Source
from engram.data.tables.table_summary import SCHEMA
from engram.guards.calibration import noise_multiplier
from engram.guards.facts import Fact
from engram.link.node_config import NodeConfig
from engram.settings.errors import Refused, brief, few
from engram.settings.experiment import Experiment
from engram.settings.method_for_data import shapes_on
from engram.sites.policy import Policy, is_allowed, is_open, policy_file
from engram.wire.messages import EVALUATE
from engram.wire.wire import SECURE_QUERY

_ADVICE: Final = "whoever starts the run can change that, or the site its policy"
_MIB: Final = 2**20


def check(objections: Iterator[str]) -> None:
    """Raises an error if there are objections.

    Raises:
        Refused: There are objections; the line has all of them.
    """
    if found := list(objections):
        raise Refused(f"this site's policy is against it: {'; '.join(found)} ({_ADVICE})")


@contextmanager
def of_servers_choice(e: Experiment, node: NodeConfig, policy: Policy) -> Iterator[None]:
    """Context in which a run's data sets are read, where a node outlives its process.

    Those of the site's own choice, by ``--data``, have no limits.

    Raises:
        Refused: One is to be downloaded, outside of the node's ``data-dir``, or its own file.
    """
    if node.state is None or node.data:
        yield
        return
    policy_of = node.policy and policy_file(node.policy)
    own = [
        path.resolve() for path in (node.state, node.identity, policy_of, node.memory_key) if path
    ]
    _check_place(e, Path(e.data_dir).resolve(), own)
    with nullcontext() if policy.downloads else without_downloads():
        yield


def _check_place(e: Experiment, allowed: Path, own: Sequence[Path]) -> None:
    inside = [path for path in own if path.is_relative_to(allowed)]
    for source in e.own.sources(e):
        plain = source.unpermuted
        if plain.kind == HUB:
            raise Refused(f"{source} is not this node's: start it with --data {source}")
        place = plain.path.resolve()
        if plain.is_file and not place.is_relative_to(allowed):
            raise Refused(
                f"{source} is not in this node's data-dir, {allowed}: other files are opened only "
                "if the node is started with them by --data"
            )
        if plain.is_file and any(map(place.is_relative_to, inside)):
            raise Refused(f"{source} is among the node's own files: keep data in another folder")


def of_settings(
    policy: Policy, e: Experiment, *, own: bool, plugins: Sequence[str] = ()
) -> Iterator[str]:
    """Yields the policy rules that a run's settings break.

    A node that has data of its ``own`` does not read those of the run.
    """
    yield from of_names(policy, e, plugins)
    yield from of_sources(policy, e, own=own)
    yield from _of_steps(policy, _factors(e, rows=1))
    if "adapt_steps" not in e.own.unread:
        yield from _of_steps(policy, {"adapt-steps": e.adapt_steps})
    yield from _of_privacy(policy, e)


def of_names(policy: Policy, e: Experiment, plugins: Sequence[str]) -> Iterator[str]:
    """Yields the policy rules that a method and plug-ins (NAME, or FOLDER/NAME) break."""
    if not is_allowed(e.method, policy.methods):
        yield f"method must be {_some(policy.methods)}, got {e.method}"
    for name in (plugin.rpartition("/")[2] for plugin in plugins):
        if not is_allowed(name, policy.plugins):
            yield f"plug-ins must be {_some(policy.plugins)}, got {name}"


def of_sources(policy: Policy, e: Experiment, *, own: bool) -> Iterator[str]:
    """Yields the policy rules that a run's data sets break, on a node without its own."""
    for source in () if own else map(_resolved, e.own.sources(e)):
        if not is_allowed(source, policy.datasets):
            yield f"dataset must be {_some(policy.datasets)}, got {source}"


def of_rows(policy: Policy, e: Experiment, rows: Mapping[int, int]) -> Iterator[str]:
    """Yields the policy rules that numbers of training rows, by client, break."""
    small = {client: count for client, count in rows.items() if count < policy.least_rows}
    if small:
        least = min(small.values())
        yield (
            f"training rows must be at least {policy.least_rows}, got {least} of client "
            f"{few(list(small))}"
        )
    most = math.inf if e.local_epochs else e.batch_size * e.local_steps
    if (drawn := min([most, *rows.values()])) < (least := least_drawn(policy, e)):
        got = f"{drawn} of batch-size {e.batch_size} times local-steps {e.local_steps}"
        got = got if drawn == most else f"{drawn} of the client that has fewest"
        yield f"an update must be made of at least {least} rows, got {got}"
    if e.local_epochs:  # else its settings say how many steps there are
        yield from _of_steps(policy, _factors(e, rows=max(rows.values(), default=1)))


def of_sums(policy: Policy, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yields the policy rules that sums of columns or words in a roster entry (``Told``) break."""
    rows = [int(entry[key]) for key in ("inputs-rows", "targets-rows") if key in entry]
    if rows and policy.secure:
        yield (
            "standardize must be client, or none for regression, where updates leave in sums "
            f"alone (secure is {policy.secure}): else sums of a site's columns are told"
        )
    if rows and min(rows) < policy.least_count:
        yield (
            f"sums of columns must be of {policy.least_count} training rows (least-count), got "
            f"{min(rows)}: standardize client or none tells none"
        )
    words = entry.get("word-rows", ())
    if words and policy.secure:
        yield (
            "tokenizer must be a file where updates leave in sums alone (secure is "
            f"{policy.secure}): else words of a site's texts are told"
        )
    if words and min(words) < policy.least_count:
        yield f"least, of rows with a word, must be at least {policy.least_count}, got {min(words)}"


def least_drawn(policy: Policy, e: Experiment) -> int:
    """Least number of different rows of an update; 0 where noise hides them.

    Noise of a smaller multiplier than 1 does not: a run may ask for as little as it likes.
    """
    noisy = {Fact.ROWS, Fact.COVERED} & e.facts and noise_multiplier(e) >= 1
    return 0 if noisy or not e.own.trains_network else policy.least_drawn


def of_models(policy: Policy, e: Experiment, kind: Kind) -> Iterator[str]:
    """Yields the policy rules that a run's models on these data break.

    No model is made that is too large by the number of its parameters.

    Raises:
        Refused: The network or the method does not fit the data.
    """
    if not e.own.trains_network:  # those of tables are as small as a row
        return
    try:
        size = 4 * parameters_for(e, kind)
    except ValueError as error:
        raise Refused(str(error)) from error
    if size <= policy.model_mib * _MIB:
        shapes = shapes_on(e, model_for(e, kind), kind.outputs)
        size = max(nbytes(shapes.received), nbytes(shapes.sent))
    yield from of_size(policy, size)


def of_size(policy: Policy, size: int) -> Iterator[str]:
    """Yields the policy rules that a model's size, in bytes, breaks."""
    if size > policy.model_mib * _MIB:
        yield f"models must have at most {policy.model_mib:g} MiB, got {size / _MIB:.4g}"


def of_now(policy: Policy, kind: str, rounds: int, now: datetime) -> Iterator[str]:
    """Yields the policy rules that a reply ``now``, in UTC, breaks after so many rounds today."""
    if not is_open(policy.hours, now):
        yield f"hours are {policy.hours} UTC, and it is {now:%H:%M}"
    if kind in (EVALUATE, SECURE_QUERY):  # the second is a part of a round
        return
    if rounds >= policy.rounds_a_day:
        yield f"rounds a day must be at most {policy.rounds_a_day}, and {rounds} were today (UTC)"


def of_scores(policy: Policy) -> Iterator[str]:
    """Yields the policy rules that a reply of scores alone breaks."""
    if not policy.evaluate:
        yield "scores of its rows are not sent"


def of_unaccounted(policy: Policy, what: str) -> Iterator[str]:
    """Yields the policy rules that answers without noise, in words, break."""
    if policy.epsilon:
        yield f"epsilon is {policy.epsilon:g} in all, and {what} have no noise, so are not sent"
    elif "none" not in policy.privacy:
        yield f"privacy must be {_some(policy.privacy)}, and {what} have none"


def of_reading(policy: Policy, e: Experiment, schema: Schema) -> Iterator[str]:
    """Yields the policy rules that a run's values and missing codes break.

    Whether a table has others than these would tell cells. So where no figure of rows may leave, a
    run names those alone that a person of the site has written.
    """
    if not (policy.secure or any(of_unaccounted(policy, ""))):
        return
    run = declare(e, alone=True).schema
    own, asked = _codes(schema), _codes(run)
    if not own >= asked:
        yield f"missing of a schema must be among those in the site's {SCHEMA}"
    for column in run.columns:
        written = schema.column(column.name).values
        if column.values and not (written and {*written} <= {*column.values}):
            yield f"values of {brief(column.name)} must include those in the site's {SCHEMA}"


def _codes(schema: Schema) -> set[str]:
    """Returns the cells that stand for something else, or for nothing."""
    each = ((*column.missing, *column.codes) for column in schema.columns)
    return {*schema.file.missing, *(code for codes in each for code in codes)}


def of_bytes(policy: Policy, size: int) -> Iterator[str]:
    """Yields the policy rules that a round's size, in bytes both ways, breaks."""
    if size > policy.mib * _MIB:
        yield f"a round must be of at most {policy.mib:g} MiB, got {size / _MIB:.4g}"


def _of_steps(policy: Policy, factors: Mapping[str, int]) -> Iterator[str]:
    steps = math.prod(factors.values())
    if steps > policy.steps:
        told = " times ".join(f"{key} {count}" for key, count in factors.items())
        yield f"steps of a round must be at most {policy.steps}, got {steps} ({told})"


def _factors(e: Experiment, *, rows: int) -> dict[str, int]:
    """Factors of the number of steps of a client with so many rows."""
    if "local_steps" in e.own.unread:
        factors = dict[str, int]()
    elif e.local_epochs:
        factors = {"local-epochs": e.local_epochs, "batches": math.ceil(rows / e.batch_size)}
    else:
        factors = {"local-steps": e.local_steps}
    own = e.own.model_dump(by_alias=True)
    return factors | {f"{e.method}.{k}": v for k, v in own.items() if k.endswith("-steps")}


def _of_privacy(policy: Policy, e: Experiment) -> Iterator[str]:
    if e.privacy not in policy.privacy:
        yield f"privacy must be {_some(policy.privacy)}, got {e.privacy}"
    least = policy.noise_multiplier
    if least and e.is_private and (noise := noise_multiplier(e)) < least:
        yield f"noise-multiplier must be at least {least:g}, got {noise:g}"
    unit = "example" if policy.privacy == ("example",) else "local"  # whose rows, or a single one
    if policy.epsilon and e.privacy != unit:
        yield f"privacy must be {unit} where epsilon has a total, got {e.privacy}"
    if policy.secure and e.aggregation == "plain":
        yield f"aggregation must be secure, for sums of {policy.secure} sites or more, got plain"
    if policy.clip and not 0 < e.clip <= policy.clip:
        yield f"clip must be above 0 and at most {policy.clip:g}, got {e.clip:g}"
    if policy.clip and e.clip_quantile:
        yield f"clip-quantile must be 0, since only the server clips then, got {e.clip_quantile:g}"


def _some(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names) or "none at all"


def _resolved(source: Source) -> str:
    """Returns a data set's name, of files by their real place."""
    plain = source.unpermuted
    return f"{plain.kind}:{os.path.realpath(plain.place)}" if plain.is_file else str(source)
