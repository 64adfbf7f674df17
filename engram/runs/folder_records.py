"""Models of the files in a run's folder."""

from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engram.core.checks import require
from engram.data.file_models import Clients, Count, Figure, Name, Seed, Settings, Stored

_Client = Annotated[str, StringConstraints(pattern=r"^\d{1,7}$")]
_Clients = list[Annotated[int, Field(ge=0, lt=10**6)]]


class _Metric(Stored):
    better: Literal["higher", "lower"]
    meaning: str
    percent: bool
    low: Figure = Field(-inf)
    high: Figure = Field(inf)


class _Settings(Settings):
    dataset: str
    seed: Seed
    num_clients: Clients


class Config(Stored):
    """``config.json``."""

    format: int
    settings: _Settings
    engine: str
    training: str
    sources: Annotated[list[str], Field(min_length=1)]
    versions: dict[str, str]
    metrics: dict[Name, _Metric]
    damaged: list[dict[str, Any]] = Field([])
    clients: Clients = 1


class _Suspended(Stored):
    until: Count
    reason: str


class MetricsRow(Stored):
    """A line of ``metrics.jsonl``: a round."""

    round: Count
    scored: Count = 0
    cohort: _Clients = Field([])
    members: _Clients = Field([])
    absent: dict[_Client, str] = Field({})
    names: dict[_Client, str] = Field({})
    own_data: Count = 0
    release: _Clients = Field([])
    suspended: dict[str, _Suspended] = Field({})
    left_out: Count = 0
    ms: Figure = 0.0
    bytes_sent: Count = 0
    bytes_received: Count = 0
    seconds_training: Figure = 0.0
    seconds_transfer: Figure = 0.0
    seconds_waiting: Figure = 0.0
    epsilon: float = 0.0
    delta: float = 0.0


class _Columns(Stored):
    """Values of clients in columns of one length: numbers, or names."""

    __pydantic_extra__: dict[str, list[Figure | str | None]]

    ids: _Clients = Field([])

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        columns = [*(self.__pydantic_extra__ or {}).values()]
        lengths = {len(self.ids)} if "ids" in self.model_fields_set else set()
        lengths.update(map(len, columns))
        require(len(lengths) <= 1, "columns of clients", sorted(lengths), "equally long")
        return self


class ScoresRow(_Columns):
    """A line of ``scores.jsonl``: the clients' scores after a round, in columns."""

    round: Count
    ids: _Clients


class ExportRow(Stored):
    """A line of ``exports.jsonl``: a model that was exported, and the last round it learned in."""

    round: Count
    folder: str
    what: str


class _Picked(Stored):
    round: Count
    clients: _Columns


class Results(Stored):
    """``results.json``."""

    method: str = ""
    rounds: Count = 0
    scored: Count = 0
    clients: _Columns | None = None
    selected: _Picked | None = None
    selected_tuned: _Picked | None = None
    unseen: _Clients = Field([])
    outlying: dict[str, _Clients] = Field({})
    ms_per_round: Figure | None = None
    client_bytes: Count | None = None
    epsilon: float = 0.0
    delta: float = 0.0

    @property
    def last_client(self) -> int:
        """The highest number of a client; -1 where none is named."""
        picked = [one.clients for one in (self.selected, self.selected_tuned) if one]
        named = [columns.ids for columns in (self.clients, *picked) if columns]
        return max(max(ids, default=-1) for ids in (self.unseen, *named))


class _Node(Stored):
    clients: _Clients
    bytes_sent: Count
    bytes_received: Count
    seconds_training: Figure
    seconds_transfer: Figure
    replies: Count
    late: Count


class Progress(Stored):
    """``progress.json``."""

    kind: str
    since: Figure
    waiting: list[int]
    answered: list[int]
    nodes: dict[Annotated[str, StringConstraints(pattern=r"^-?\d{1,20}$")], _Node]
