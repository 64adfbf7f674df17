"""A call to a SuperLink by which nothing begins: does it answer, and know this node?"""

from datetime import timedelta

import grpc

from engram.guards.clock import now, sent_time
from engram.link.flower import node_pb2, run_pb2
from engram.link.node.fleet import CALL, ClockRefused, Fleet, KeyRefused, Unreachable


class Greeting(Fleet):
    """A connection for one call, beside the session of the node that may be running."""

    def greet(self, node_id: int | None) -> timedelta | None:
        """Asks for a run that there is not, which changes nothing.

        Args:
            node_id: The id of this node's last session. Without one, a SuperLink that does not know
                the key cannot be told from one that does.

        Returns:
            How far this machine's clock is ahead of the SuperLink's; None if it did not say.

        Raises:
            Unreachable: The SuperLink does not answer.
            Untrusted: What answers is not the SuperLink that the node was set up for.
            ClockRefused: Its clock and this machine's differ too much.
            KeyRefused: It does not know the key, or not by this id.
        """
        self._dial()
        request = run_pb2.GetRunRequest(node=node_pb2.Node(node_id=node_id or 0))
        try:
            self._stub.GetRun(request, timeout=CALL)
        except grpc.RpcError as error:
            refusal, server = self._explain(error), sent_time(error.trailing_metadata())
            if server is None and isinstance(refusal, Unreachable):
                self._check_certificate()
                raise refusal from error
            unknown = isinstance(refusal, KeyRefused) and (node_id is not None or refusal.for_good)
            if unknown or isinstance(refusal, ClockRefused):
                raise refusal from error
            return None if server is None else now() - server
        finally:
            self.close()
        return None
