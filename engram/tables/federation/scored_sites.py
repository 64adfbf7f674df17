"""The base of exchanges between sites with scores."""

from collections.abc import Sequence
from logging import getLogger
from typing import ClassVar

from engram.core.types import Params
from engram.scoring.evaluation import Evaluation, Scored, read_scores
from engram.scoring.score_columns import Column
from engram.strategies.base import Row
from engram.strategies.site_strategy import SiteStrategy, read_split
from engram.wire.messages import Content, Reply
from engram.wire.wire import CLIENTS

_log = getLogger("flwr.engram")


class ScoredSites(SiteStrategy):
    """Asks every online site, and collects their scores.

    Attributes:
        columns: The scores.
        scored: The last evaluation, or None.
    """

    scored_from = 1
    columns: ClassVar[Sequence[Column]]
    scored: Evaluation | None = None

    def init(self) -> Params:
        """Returns no arrays: nothing is shared before the first exchange."""
        self.state = {}
        return {}

    def aggregate_evaluate(self, server_round: int, replies: Sequence[Reply]) -> Row:
        """Collects the sites' scores in ``scored``.

        Returns:
            ``clients``, the number of sites scored; nothing if there were none.
        """
        scored: Scored = {}
        unscored: dict[int, str] = {}

        def read(content: Content, clients: list[int]) -> None:
            ids, failed, _ = read_split(content, clients)
            details = content[CLIENTS]
            scored.update(read_scores(details, ids, self.columns, "rows", least=0))
            unscored.update(failed)

        unscored |= self.gather(server_round, replies, read)
        for client, reason in sorted(unscored.items()):
            _log.warning("client %s lacks scores: %s", self.called(client), reason)
        if not scored:
            return {}
        self.scored = Evaluation.of(scored)
        return {"clients": len(scored)}

    @property
    def evaluated(self) -> bool:
        """Whether any site was scored."""
        return self.scored is not None
