"""What messages and their replies cost, for the record."""

from typing import Any, NamedTuple


class Exchange(NamedTuple):
    """What a round of messages and replies cost."""

    seconds: float  # how long it took
    latencies: dict[int, float]  # seconds until each node's reply was here
    training: dict[int, float]  # seconds of these that the node says it trained
    sent: int  # bytes of the models that were sent, again where they were sent again
    received: int  # bytes of the models that came back
    # Nodes that are left out for a while, as ``Suspensions.current`` has them.
    suspended: dict[int, dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """Returns its metrics: its costs, and its notes."""
        return {**self.costs(), **self.notes()}

    def notes(self) -> dict[str, Any]:
        """Returns who is ``suspended``, if somebody is."""
        who = {str(node): told for node, told in self.suspended.items()}
        return {"suspended": who} if who else {}

    def costs(self) -> dict[str, float]:
        """Returns its bytes, and the seconds of the mean node that replied.

        ``seconds-training``, ``seconds-transfer`` (on the way, and until it was noticed) and
        ``seconds-waiting`` (for the slowest of the others) add up to the exchange.
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
