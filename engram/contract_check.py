"""The contract of a method, as a test: engines, resumed runs and lost messages rely on it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_map

from engram.client.hosts import Engine, Host
from engram.client.hosts.local import LocalHost
from engram.client.requests import Request
from engram.core.contract import SlotFault
from engram.core.method import Context, Method, Served
from engram.core.process_modes import own_modes
from engram.python_arguments import settings_of
from engram.runs.run import Run
from engram.settings.errors import Refused, one_line
from engram.settings.experiment import Experiment, read_by
from engram.settings.network import NetworkMethod
from engram.simulations.engine import simulate
from engram.strategies.running.base import nested
from engram.wire.messages import Content, Reply
from engram.wire.tensors import tensors_from_bytes

if TYPE_CHECKING:
    from engram.data.readers.in_memory import Data

_Numbers = Mapping[str, Tensor]  # all that a run computed, by name

_QUICK: Final[Mapping[str, Any]] = {
    "num-clients": 4,
    "num-rounds": 4,
    "clients-per-round": 3,
    "local-steps": 2,
    "batch-size": 4,
    "hidden": "8",
    "eval-every": 4,
    "checkpoint-every": 2,
    "adapt-steps": 1,
}
_CLOSE: Final = 1e-5  # relative and absolute: what rounding may make of a few rounds
_MODULE: Final = {"model": "resnet", "hidden": "4"}  # a network whose steps torch.func.vmap stacks


@own_modes()
def check_method(method: str, data: "Data | None" = None, **settings: Any) -> None:
    """Checks that a method keeps the contract, by short runs on digits or other data.

    - Its *slots* are those that it declares: in every part of a round they have the names, shapes
      and kinds that they began with, those leave that ``Client.sends`` names, and every model that
      serves a client has the network's parameters.
    - It is *pure*: the functions of its server, of its client and ``serve`` give the same for the
      same inputs, and leave their inputs as they are.
    - It *vectorizes*: clients that are trained together get what they get one after the other, up
      to rounding. Unless ``model`` is given, this is checked for an ``mlp`` and for a ``resnet``.
    - It *resumes*: a run that stopped, and went on from its last checkpoint, gives the same numbers
      as one that did not stop.
    - It survives *lost replies*: clients that are asked again, since their replies were lost, give
      the same, and their memories are as if they had been asked once.

    Of methods that train no network only the last two are checked.

    Args:
        method: Its name.
        data: As for ``engram.simulate``.
        **settings: As for ``engram.simulate``, in place of those of a short run.

    Raises:
        AssertionError: A property does not hold: a line for each that was found not to.
        Refused: If settings or data are impossible.
    """
    given = settings_of(data, method, settings)
    experiment = Experiment.from_config(read_by(method, _QUICK) | given)
    networks = [experiment]
    if experiment.own.trains_network and not given.keys() & _MODULE:
        networks.append(experiment.model_copy(update=_MODULE))
    with TemporaryDirectory() as place:
        found = list(_broken(networks, Path(place)))
    if found:
        raise AssertionError("\n".join(found))


def engines_differ(
    experiment: Experiment, place: Path, *, one_by_one: _Numbers | None = None
) -> str:
    """Describes a difference between the engines' numbers, or a failure; "" if there is none.

    Training would choose among the ways to train a cohort by the clock: each is run. Unless
    ``one_by_one`` is what the sequential engine gives, it is run, too.
    """
    left: list[str] = []

    def next_way(host: Host) -> Host:
        if isinstance(host, LocalHost):
            # That of the sequential engine is known, unless there is no other.
            left[:] = left or [way for way in host.trainer.ways if way != "in-turn"]
            host.trainer.way = left.pop() if left else ""
        return host

    try:
        one_by_one = one_by_one or _outcome(experiment, place / "sequential")
        outcome = partial(_outcome, experiment, engine="vectorized", through=next_way)
        differs = _difference(outcome(place / "vectorized"), one_by_one, _CLOSE)
        while left and not differs:
            differs = _difference(outcome(place / left[-1]), one_by_one, _CLOSE)
        return differs
    except Exception as error:  # anybody's method
        return _in_words(error)


def _broken(networks: Sequence[Experiment], place: Path) -> Iterator[str]:
    experiment, raised = networks[0], list[Exception]()
    try:
        whole = _outcome(experiment, place / "whole", through=lambda host: _noting(host, raised))
    except Exception as error:  # anybody's method
        if fault := _slot_fault(raised[0] if raised else error):
            yield f"slots: expected {fault.expected}; got {fault.got}"
            return
        if isinstance(error, Refused):
            raise
        yield f"runs: expected a run of {experiment.rounds} rounds; got {_in_words(error)}"
        return
    if experiment.own.trains_network:
        yield from _impure(experiment, experiment.network, place / "watched")
        for e in networks:
            known = whole if e is experiment else None
            if got := engines_differ(e, place / e.model, one_by_one=known):
                expected = f"what clients get one by one, to {_CLOSE:g}"
                yield f"vectorizes: expected of a cohort {expected} ({e.model}); got {got}"
                break

    def resumed() -> _Numbers:
        def stop(row: Mapping[str, Any]) -> None:
            if row["round"] == experiment.rounds - 1:
                raise _Stopped

        folder = place / "stopped"
        with suppress(_Stopped):
            simulate(experiment, folder, engine="sequential", on_round=stop)
        return _outcome(experiment.model_copy(update={"resume": str(folder)}), folder)

    if got := _unlike(whole, resumed):
        expected = "what one gives that did not"
        yield f"resumes: expected of a run that stopped and went on {expected}; got {got}"
    if got := _unlike(whole, lambda: _outcome(experiment, place / "lost", through=_asked_twice)):
        expected = "what they give when asked once"
        yield f"lost replies: expected of clients that are asked twice {expected}; got {got}"


class _Stopped(Exception):
    """Ends a run, as if its process had died."""


class _Between(NamedTuple):
    """A host that trains its clients by another function."""

    host: Host
    trains: Callable[[Sequence[Request]], list[Reply]]

    def describe(self, hosted: Sequence[int]) -> Content:
        return self.host.describe(hosted)

    def train(self, requests: Sequence[Request]) -> list[Reply]:
        return self.trains(requests)

    def evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        return self.host.evaluate(requests)


def _asked_twice(host: Host) -> Host:
    """Makes a host lose its first replies to training, so that it is asked again."""

    def train(requests: Sequence[Request]) -> list[Reply]:
        host.train(requests)
        return host.train(requests)

    return _Between(host, train)


def _noting(host: Host, raised: list[Exception]) -> Host:
    """Makes a host note its errors in training, which a run tells in words."""

    def train(requests: Sequence[Request]) -> list[Reply]:
        try:
            return host.train(requests)
        except Exception as error:  # of any kind: it is raised again, and told by its type
            raised.append(error)
            raise

    return _Between(host, train)


# --- Runs, and what differs between them ---------------------------------------------------------


def _outcome(
    experiment: Experiment,
    folder: Path,
    *,
    engine: Engine = "sequential",
    through: Callable[[Host], Host] | None = None,
) -> _Numbers:
    results = simulate(experiment, folder, engine=engine, through=through)
    checkpoint = Run.open(folder).load_checkpoint()
    if checkpoint is None:
        raise ValueError("the run has no checkpoint")
    kept = tensors_from_bytes(checkpoint.memories) if checkpoint.memories else {}
    state, others = nested(checkpoint.state)
    state |= others["clock"] | others["traffic"]  # selections are of shares, too
    # A share of rows that are right may change by a whole row for a rounding error.
    scores = {k: v for k, v in results.get("clients", {}).items() if k.startswith("loss")}
    return {
        **{f"{name} of the model": leaf for name, leaf in checkpoint.model.items()},
        **{f"{name} of the server's state": leaf for name, leaf in state.items()},
        **{f"{name} of the clients' memories": leaf for name, leaf in kept.items()},
        **{f"the clients' {k}": torch.tensor(np.array(v, float)) for k, v in scores.items()},
    }


def _unlike(numbers: _Numbers, run: Callable[[], _Numbers]) -> str:
    """Describes how a run's numbers differ from others, or that it failed; "" if they agree."""
    try:
        return _difference(run(), numbers)
    except Exception as error:  # anybody's method
        return _in_words(error)


def _in_words(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", longest=500)


def _difference(found: Any, expected: Any, tolerance: float = 0.0) -> str:
    """Names the tensor in which two trees differ most; "" if they are equal up to a tolerance."""
    one, other = _leaves(found), _leaves(expected)
    if one.keys() != other.keys():
        return f"other tensors: {', '.join(sorted(one.keys() ^ other.keys()))}"
    worst, words = 0.0, ""
    for name, leaf in one.items():
        if leaf.shape != other[name].shape:
            return f"{name} of shape {tuple(leaf.shape)}, and not {tuple(other[name].shape)}"
        if torch.allclose(leaf, other[name], rtol=tolerance, atol=tolerance, equal_nan=True):
            continue
        apart = float((leaf.double() - other[name].double()).abs().nan_to_num(torch.inf).max())
        if apart >= worst:
            worst, words = apart, f"a difference of up to {apart:.3g} in {name}"
    return words


def _leaves(tree: Any) -> dict[str, Tensor]:
    found, _ = tree_flatten_with_path(vars(tree) if isinstance(tree, Served) else tree)
    return {
        ".".join(_step(key) for key in path): leaf
        for path, leaf in found
        if isinstance(leaf, Tensor)
    }


def _slot_fault(error: BaseException | None) -> SlotFault | None:
    while error is not None and not isinstance(error, SlotFault):
        error = error.__cause__
    return error


def _step(key: Any) -> str:
    return str(next(getattr(key, n) for n in ("key", "idx", "name") if hasattr(key, n)))


# --- Purity --------------------------------------------------------------------------------------


def _impure(experiment: Experiment, own: NetworkMethod, folder: Path) -> Iterable[str]:
    found: dict[str, str] = {}

    class Settings(type(own.settings)):  # type: ignore[misc]  # whatever class they are of
        def build(self, context: Context) -> Method:
            return _twice(super().build(context), found)

    class Watched(type(own)):  # type: ignore[misc]  # as above
        @property
        def settings(self) -> Any:
            return Settings(**vars(super().settings))

    try:
        _outcome(experiment.model_copy(update={"own": Watched(**own.model_dump())}), folder)
    except Exception as error:  # anybody's method
        found.setdefault("", f"pure: expected functions to be called twice; got {_in_words(error)}")
    return found.values()


def _twice(method: Method, found: dict[str, str]) -> Method:
    server, client = method.server, method.client
    sees = "mean" if server.merge.combines else "updates"
    merge = _watched(f"merge(server, {sees})", server.merge.merge, found)
    phases = [
        phase._replace(direction=_watched("direction(work, batches)", phase.direction, found))
        for phase in client.phases
    ]
    return method._replace(
        server=server._replace(
            send=_watched("send(server, clients)", server.send, found),
            merge=server.merge._replace(merge=merge),
        ),
        client=client._replace(
            begin=_watched("begin(received, kept, batch)", client.begin, found),
            phases=tuple(phases),
            end=_watched("end(received, work)", client.end, found),
        ),
        serve=_watched("serve(received, kept, trained)", method.serve, found),
    )


def _watched(name: str, function: Callable[..., Any], found: dict[str, str]) -> Callable[..., Any]:
    """Returns a function that is called twice each time, and what is impure about it noted."""

    def call(*given: Any) -> Any:
        if any(leaf.is_meta for leaf in _leaves(given).values()):  # shapes without values
            return function(*given)
        copies = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)
        first = function(*given)
        if changed := _difference(given, copies):
            found[name] = f"pure: expected {name} to leave its inputs as they are; got {changed}"
        elif apart := _difference(function(*copies), first):
            found[name] = f"pure: expected {name} to give the same for the same inputs; got {apart}"
        return first

    return call
