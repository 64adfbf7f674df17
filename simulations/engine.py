"""Runs an experiment in this process."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from engram.client.hosts import Engine, Host, Opening, Summed, host_of
from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import Share, in_order
from engram.cohort.trainer.worker_pool import training
from engram.cohort.trainer.workers import Workers, warn_alone
from engram.core.streams import Stream, generator
from engram.guards.noise import simulated_noise
from engram.guards.presets import client_guards
from engram.server.run import run
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.logs import log_plainly
from engram.settings.network import NetworkMethod
from engram.simulations.grid import InProcessGrid
from engram.simulations.in_process import Direct
from engram.simulations.replayed_participation import Participation, ReplayedGrid


def simulate(
    experiment: Experiment,
    folder: Path,
    *,
    engine: Engine = "vectorized",
    on_round: Callable[[dict[str, Any]], None] | None = None,
    on_start: Callable[[str], None] | None = None,
    through: Callable[[Host], Host] | None = None,
    opens: Callable[[Opening], Host] = host_of,
    cluster: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Runs or resumes the experiment in this process.

    Args:
        experiment: The experiment.
        folder: Where the run is recorded.
        engine: ``vectorized`` trains a cohort at once; ``sequential`` trains one client at a
            time, and says which one fails, and where.
        on_round: Called with each round's metrics.
        on_start: Called with a client's costs in a round, before the first.
        through: What stands between the server and the host of all clients; None if nothing does,
            and clients that train a network are trained and scored without messages.
        opens: Opens the host of all clients; by default with the experiment's own data.
        cluster: ``(experiment, engine, data) -> share``: opens other workers that train the
            clients, such as ``ray_rounds.Cluster``, until they are closed.

    Returns:
        The results, as ``engram.server.run.run`` returns them.

    Raises:
        Refused: The settings do not fit the data, the folder or the cluster; nothing has been
            written.
        RunStopped: It diverged, or a round had no usable reply.
    """
    log_plainly()
    with training(experiment.cpu_threads), ExitStack() as stack:
        memories, noise = RamStore(), simulated_noise(experiment.seed)
        everyone = range(experiment.num_clients)
        host = opens(Opening(experiment, memories, engine=engine, noise=noise))
        secure = client_guards(experiment).masks
        if secure and isinstance(host, Summed):
            from engram.guards.secure.masking import MaskingHost  # noqa: PLC0415 - plain rounds need none of it
            from engram.guards.secure.secure_parties import of_process  # noqa: PLC0415 - plain rounds need none

            drawn = partial(generator, experiment.seed, Stream.CLIENT_NOISE)
            host = MaskingHost(host, of_process(), noise=lambda *keys: drawn(*keys).bytes)
        direct = None
        if through is not None:
            host = through(host)
        elif isinstance(host, LocalHost):
            direct = Direct(host)
            if on_start is not None:
                on_start(host.trainer.costs)
        if cluster is not None:
            plain = direct and experiment.attack == "none" and not experiment.participation
            if not (plain and isinstance(host, LocalHost)):
                others = "methods without a network, secure sums, attacks, participation"
                raise Refused(f"ray must be left out for {others}")
            workers = cluster(experiment, engine, host.trainer.given)
            share: Share = stack.enter_context(closing(workers))
        elif experiment.cores == 1:
            share = in_order
        else:
            share = stack.enter_context(closing(Workers(experiment)))
        if isinstance(host, LocalHost):
            host.share = share
        if experiment.attack != "none":
            from engram.attack.attacks import attacked  # noqa: PLC0415 - few runs are attacked

            host, direct = attacked(host, experiment, memories, engine=engine, noise=noise)
        # One node can send the mean of all clients where the server needs only a mean.
        own = experiment.own
        apart = secure or (isinstance(own, NetworkMethod) and not experiment.combines)
        apart = apart or bool(experiment.without)  # a node answers for all clients that it hosts
        nodes = [[client] for client in everyone] if apart else [everyone]
        grid = InProcessGrid(host, nodes, direct)
        if experiment.participation:
            script = Participation.of(experiment)
            grid = ReplayedGrid(host, experiment.num_clients, script, direct)
        if direct is None:
            why = "clients get messages where sums are secure, or no network is trained"
            warn_alone(experiment, why)
        return run(
            grid,
            experiment,
            folder,
            engine=engine,
            memories=memories,
            noise=noise,
            on_round=on_round,
        )
