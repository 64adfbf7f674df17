"""Questions in transit to nodes, their replies, and their costs."""

from typing import NamedTuple, Self

from engram.wire.messages import Question, Reply
from engram.wire.wire import CLIENTS, COLUMNS, SECONDS, TRAINING, config_of, read_list


class Asked(NamedTuple):
    """A question in transit."""

    question: Question
    clients: int  # how many it asks; 1 if it does not say
    named: list[int]  # the clients that it names
    training: str  # the name that clients keep memories of the run under
    columns: bool = False  # whether it asks for a description of the node's table
    activated: str = ""  # its node's activation time when it was sent

    @classmethod
    def by(cls, question: Question) -> Self:
        """Returns the facts about a question that is sent."""
        config = config_of(question.content)
        named = read_list(config, CLIENTS, int) if CLIENTS in config else []
        training, columns = str(config.get(TRAINING, "")), bool(config.get(COLUMNS))
        return cls(question, len(named) if CLIENTS in config else 1, named, training, columns)

    @property
    def node(self) -> int:
        """The node that it is sent to."""
        return self.question.node


class Exchange(NamedTuple):
    """The cost of one round of questions and replies."""

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


def trained_for(reply: Reply, latency: float) -> float:
    """Returns the seconds of training that a node reports; 0 if impossible."""
    seconds = reply.content.get(CLIENTS, {}).get(SECONDS, 0.0)
    return seconds if isinstance(seconds, float) and 0 <= seconds <= latency else 0.0
