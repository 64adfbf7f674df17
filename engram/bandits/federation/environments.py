"""Environments of bandit sites: simulated, or read from their tables."""

import numpy as np

from engram.core.streams import Stream, generator
from engram.data.tables.tables import TableData
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from engram.tables.bandits.environments import TaskEnvironment, replay, simulate
from engram.tables.federation.molar import MolarBandit
from engram.tables.simulation import sparse_parameters
from engram.tables.site import estimate_site

SIMULATED = "sparse-linear"
COLUMNS = 30  # of the simulation in Section 4.1
_DIFFERING, _NOISE = 2, 0.5


def simulated_environment(experiment: Experiment, client: int) -> TaskEnvironment:
    """Draws a site's turns in the simulation of Section 4.1, of so many sites as there are clients.

    Parameters and activation probabilities are drawn for all sites, the turns for each apart.
    """
    e, own = experiment, experiment.of(MolarBandit)
    rng = generator(experiment.seed, Stream.PARTITION)
    activation = rng.random(e.num_clients)
    coefs = [
        sparse_parameters(rng, e.num_clients, COLUMNS, _DIFFERING)[client]
        for _ in range(own.parameters)
    ]
    return simulate(
        generator(e.seed, Stream.WORLD, client),
        np.stack(coefs),
        arms=own.arms,
        activation=float(activation[client]),
        horizon=own.horizon(e),
        sigma=_NOISE,
    )


def table_environment(experiment: Experiment, data: TableData, client: int) -> TaskEnvironment:
    """Draws a site's turns from its table, the protocol of PISA in J.2.

    In each turn it reads as many of its training rows as there are arms, and chooses one. Regret is
    counted by least squares on its held-out rows. It is activated as often, beside the largest of
    the sites whose rows are here, as it has rows.

    Raises:
        DataError: If it has too few held-out rows, or some are not finite.
    """
    e, own = experiment, experiment.of(MolarBandit)
    rows, held_out = data.train[client], data.test[client]
    called = f"client {data.names.get(client, client)}"
    if rows is None or held_out is None:
        raise DataError(f"{called} has no rows here, or none is held out")
    for name, part in (("training", rows), ("held-out", held_out)):
        if not (np.isfinite(part.x).all() and np.isfinite(part.y).all()):
            raise DataError(f"{called}: its {name} rows have NaN or infinity")
    if own.intercept:
        rows, held_out = rows.with_ones(), held_out.with_ones()
    reference = estimate_site(held_out)
    if not np.isfinite(reference.sigma):
        raise DataError(
            f"{called} has {len(held_out.y)} held-out rows, too few to count regret by: "
            "raise test-fraction"
        )
    sizes = [len(own.y) for own in data.train if own is not None]
    # What nobody can know from these rows counts as nothing.
    return replay(
        generator(e.seed, Stream.WORLD, client),
        rows,
        reference.coef,
        activation=len(rows.y) / max(sizes),
        horizon=own.horizon(e),
        arms=own.arms,
    )
