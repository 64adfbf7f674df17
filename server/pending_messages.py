"""Messages in transit to nodes, their replies, and their costs."""

from typing import NamedTuple, Self

from flwr.app import Message

from engram.wire.wire import CLIENTS, COLUMNS, SECONDS, TRAINING, config_of, read_list


class Asked(NamedTuple):
    """A message in transit."""

    message: Message
    clients: int  # how many it asks; 1 if it does not say
    named: list[int]  # the clients that it names
    training: str  # the name that clients keep memories of the run under
    columns: bool = False  # whether it asks for a description of the node's table
    activated: str = ""  # its node's activation time when it was sent

    @classmethod
    def by(cls, message: Message) -> Self:
        """Returns the facts about a message that is sent."""
        config = config_of(message.content)
        clients = config.get(CLIENTS, [0])
        return cls(
            message,
            len(clients) if isinstance(clients, list) else 1,
            read_list(config, CLIENTS, int) if CLIENTS in config else [],
            str(config.get(TRAINING, "")),
            bool(config.get(COLUMNS)),
        )

    @property
    def id(self) -> str:
        """The message's id, by which its reply names it."""
        return self.message.metadata.message_id

    @property
    def node(self) -> int:
        """The node that it is sent to."""
        return self.message.metadata.dst_node_id


class Exchange(NamedTuple):
    """The cost of one round of messages and replies."""

    seconds: float  # duration
    latencies: dict[int, float]  # seconds until each node's reply had arrived
    training: dict[int, float]  # the part of these that the node reports as training
    sent: int  # bytes of the models sent, counted again when sent again
    received: int  # bytes of the models that came back

    def costs(self) -> dict[str, float]:
        """Returns its bytes, and mean seconds over the nodes that replied.

        ``seconds-training``, ``seconds-transfer`` (in transit, and until the reply was noticed) and
        ``seconds-waiting`` (for the slowest node) add up to the duration of the exchange.
        """
        nodes = len(self.latencies)
        if not nodes:
            return {"bytes-sent": self.sent, "bytes-received": self.received}
        latency = sum(self.latencies.values()) / nodes
        training = sum(self.training.values()) / nodes
        return {
            "bytes-sent": self.sent,
            "bytes-received": self.received,
            "seconds-training": training,
            "seconds-transfer": latency - training,
            "seconds-waiting": self.seconds - latency,
        }


def has_code(reply: Message, *codes: int) -> bool:
    """Whether a reply is an error with one of some codes."""
    return reply.has_error() and reply.error.code in codes


def trained_for(reply: Message, latency: float) -> float:
    """Returns the seconds of training that a node reports; 0 if impossible."""
    if not reply.has_content() or CLIENTS not in reply.content.config_records:
        return 0.0
    seconds = reply.content.config_records[CLIENTS].get(SECONDS, 0.0)
    return seconds if isinstance(seconds, float) and 0 <= seconds <= latency else 0.0
