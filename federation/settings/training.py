"""Who trains in a round, and on which rows."""

from typing import Literal

from pydantic import Field

from federation.settings.fields import Int, Settings


class TrainingSettings(Settings):
    """Who trains in a round, and on which rows."""

    clients_per_round: Int = Field(10, ge=1, description="clients that train in a round (B)")
    shards: Int = Field(
        1,
        ge=1,
        description="shards of clients (client i is in shard i mod shards), from each of which "
        "the same number trains in a round; as many as nodes: every node has the same to do",
    )
    local_steps: Int = Field(5, ge=1, description="local steps of a client in a round (H)")
    batch_size: Int = Field(5, ge=1, description="rows in each batch of a local step (K)")
    order: Literal["shuffled", "stream"] = Field(
        "shuffled",
        description="rows of a batch: shuffled (drawn at random, with replacement) or stream (the "
        "client's next ones; a round passes for all clients, whether they train or not, and after "
        "the last row comes the first again)",
    )
