"""A network of a run with its card: a client's own, or the common one."""

from engram.data.schema.columns import Schema
from engram.home.card import of_network
from engram.home.evidence import evidence_of_network
from engram.home.exported import Package
from engram.home.learned import MODELS, Models
from engram.home.newcomers import adapted_package, common_model, notes_on
from engram.home.run_models import LearnedNetworks
from engram.home.serving import without_medians
from engram.settings.errors import DataError
from engram.settings.network import NetworkMethod


def package_of(learned: LearnedNetworks, client: int | None) -> Package:
    """Returns the network that serves a client, or the common one.

    Raises:
        Refused: If there is none, or its memories or rows are elsewhere.
    """
    if client is None:
        module, kind = common_model(learned), learned.kind
    else:
        module = learned.module(learned.personal(client), learned.network_of(client), client)
        kind = learned.kind_of(client)
    notes = notes_on(learned, module, common=client is None)
    kind = kind._replace(schema=_schema_here(learned, client))
    evidence = evidence_of_network(learned, module, client, kind.schema)
    return of_network(learned.origin(client), module, kind, evidence, notes)


def _schema_here(learned: LearnedNetworks, client: int | None) -> Schema | None:
    """Returns the schema of inputs, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    schema = learned.kind.schema
    if (elsewhere := without_medians(schema)) == schema:
        return schema
    try:
        return learned.data.schema_of(client if learned.by_task else None)
    except DataError:
        if not learned.may_lack_rows:
            raise
        return elsewhere


MODELS.register(NetworkMethod.plug_in)(Models(LearnedNetworks, package_of, adapted_package))
