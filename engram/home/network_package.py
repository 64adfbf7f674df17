"""A network of a run with its card: a client's own, or the common one."""

from engram.data.schema.columns import Schema
from engram.home.card import of_network, origin_of
from engram.home.evidence import evidence_of_network
from engram.home.exported import Package
from engram.home.learned import MODELS, Models
from engram.home.newcomers import adapted_package, common_model, notes_on
from engram.home.run_models import LearnedNetworks
from engram.home.serving import without_medians
from engram.settings.errors import DataError
from engram.settings.network import NetworkMethod


def package_of(learned: LearnedNetworks, client: int | None) -> Package:
    """Returns a client's network of a finished run, or the common one.

    Raises:
        Refused: If there is none, or its memories or rows are elsewhere.
    """
    e, rows, kind = learned.experiment, _rows(learned), learned.kind
    if client is None:
        module, rows = common_model(learned), f"{rows}, {e.num_clients} clients"
    else:
        module = learned.module(learned.personal(client), learned.network_of(client), client)
        kind = learned.kind_of(client)
        rows = f"{rows}: rows of client {learned.called(client)}, and others'"
    notes = notes_on(learned, module, common=client is None)
    schema = schema_here(learned, client if e.partition == "natural" else None)
    found = evidence_of_network(learned, module, client, schema)
    origin = origin_of(learned, client, rows)
    return of_network(origin, module, kind._replace(schema=schema), found, notes)


def _rows(learned: LearnedNetworks) -> str:
    e, said = learned.experiment, learned.rows_in_words
    return f"{said}, partition {e.partition}" if said == e.source.described else said


def schema_here(learned: LearnedNetworks, owner: int | None) -> Schema | None:
    """Returns the schema of inputs, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    schema = learned.kind.schema
    if (elsewhere := without_medians(schema)) == schema:
        return schema
    try:
        return learned.data.schema_of(owner)
    except DataError:  # the rows are on the nodes alone, or were those of another process
        here = learned.checkpoint.memories is not None
        if here and not learned.experiment.source.in_memory:
            raise
        return elsewhere


MODELS.register(NetworkMethod.plug_in)(Models(LearnedNetworks, package_of, adapted_package))
