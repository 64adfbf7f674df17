"""Bytes and seconds of an exchange of messages, for the record."""

from typing import Any, NamedTuple


class Exchange(NamedTuple):
    """The cost of one round of messages and replies."""

    seconds: float  # duration
    latencies: dict[int, float]  # seconds until each node's reply had arrived
    training: dict[int, float]  # the part of these that the node reports as training
    sent: int  # bytes of the models sent, counted again when sent again
    received: int  # bytes of the models that came back
    suspended: dict[int, dict[str, Any]]  # nodes left out for a while: ``Suspensions.current``

    def summary(self) -> dict[str, Any]:
        """Returns its costs and notes together."""
        return {**self.costs(), **self.notes()}

    def notes(self) -> dict[str, Any]:
        """Returns the ``suspended`` nodes, if there are any."""
        who = {str(node): told for node, told in self.suspended.items()}
        return {"suspended": who} if who else {}

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
