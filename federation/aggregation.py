"""A method's aggregate as the settings modify it: with protection and a server step."""

from typing import Any

from engram.aggregates import Aggregate, averaging
from engram.models import Model
from federation.errors import Refused
from federation.experiment import Experiment
from federation.methods.local import LocalMethod
from federation.noise import Noise, secret_noise
from federation.protection import average, protected
from federation.settings.protection import ProtectionSettings


def aggregate_of(
    experiment: Experiment,
    noise: Noise = secret_noise,
    *,
    network: Model | None = None,
) -> Aggregate:
    """Builds the method's aggregate, wrapped in its protection and the server's step.

    Args:
        experiment: The settings.
        noise: Where the noise of central privacy comes from.
        network: The network, whose running statistics are averaged. None where only the aggregate's
            flags matter.

    Raises:
        Refused: The method's aggregate is not a mean, and the settings would replace a mean.
    """
    try:
        method = experiment.of(LocalMethod)
        own = (
            method.aggregate(experiment) if network is None else method.server(network, experiment)
        )
        running = frozenset[str]() if network is None else network.running
        merged = protected(own, experiment, noise)
    except ValueError as error:
        raise Refused(str(error)) from error
    if experiment.server_step == "universal":
        from engram.online.server_step import (  # noqa: PLC0415 - numba is slow to import
            universal_step,
        )

        merged = universal_step(merged, experiment.server_radius)
    return averaging(merged, running, average(experiment))


def server_step_notes(e: ProtectionSettings, parameters: int) -> dict[str, Any]:
    """Returns what a run's results say about its server step; ``parameters`` is the model's size.

    Empty where the merged model replaces the last one. Otherwise ``server-step``,
    ``server-radius``, and whether there are base learners for ``exp-concave`` losses.
    """
    if e.server_step == "replace":
        return {}
    from engram.online.server_step import has_exp_concave  # noqa: PLC0415 - as above

    return {
        "server-step": e.server_step,
        "server-radius": e.server_radius,
        "exp-concave": has_exp_concave(parameters),
    }
