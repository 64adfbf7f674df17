"""The base of exchanges between sites with scores."""

from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any, ClassVar

from engram.core.types import Params
from engram.scoring.evaluation import Evaluation, Scored, read_scores
from engram.scoring.score_columns import Column
from engram.strategies.running.base import Nodes, Row
from engram.strategies.running.site_strategy import SiteStrategy, read_split
from engram.tables.federation.molar_messages import SHARED
from engram.wire.messages import EVALUATE, Content, Question, Reply
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

    def configure_evaluate(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Sends the shared estimate to every online site, whether it took part or not."""
        self.scored, shared = None, {SHARED: arrays}
        return self.questions(EVALUATE, server_round, config, grid, lambda _: shared)

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
