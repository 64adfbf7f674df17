"""Scores of the served models, of the common model, and of served models after fine-tuning."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.cohort.trainer.client_memory import Memory
from engram.core.method import Slots
from engram.core.streams import groups_of, scored, unseen
from engram.core.tree import concatenated, select, stacked
from engram.scoring.query_rows import Queries, padded, query_rows
from engram.scoring.score_columns import COMMON, ELSEWHERE, VALIDATION
from engram.scoring.score_metrics import measure
from engram.scoring.served import BLOCK, Answer, ServedModels


class Scores(NamedTuple):
    """Scores on query rows, each of shape (clients,)."""

    # Metric columns by name: the served model's, without a suffix; the common model's, ``-common``,
    # where there is one; and those of the served model after fine-tuning, ``-tuned``, where it can
    # be fine-tuned and is not yet.
    columns: dict[str, Tensor]
    queries: Tensor  # numbers of test rows that were scored


@dataclass
class Scorer:
    """Scores clients by one protocol, for every method.

    Models are scored on all test rows, and on the rows held out for validation; under the
    ``few-shot`` protocol, on the test rows that are not support rows.
    """

    models: ServedModels

    def blocks(self, clients: Sequence[int], memories: Sequence[Memory]) -> list[list[int]]:
        """Returns blocks of clients that are scored together, by position."""
        # Clients that fine-tune on as many rows, and keep the same slots.
        alike: dict[tuple[int, bool, Hashable], list[int]] = {}
        for i, (client, memory) in enumerate(zip(clients, memories, strict=True)):
            key = self.models.drawn(client), memory.trained, memory.form
            alike.setdefault(key, []).append(i)
        models = self.models
        splits = [split for split in (models.data.test, models.data.validation) if split]
        splits.append(models.data.train)
        most = max(len(split.rows[c]) for split in splits for c in clients)
        blocks = []
        for (drawn, *_), some in alike.items():
            numbers = max(models.row * max(most, drawn), models.learner.size)
            block = max(1, BLOCK // numbers) if models.vectorized else 1
            blocks += [some[at : at + block] for at in range(0, len(some), block)]
        return blocks

    def block(
        self, common: Slots, own: Slots, clients: Sequence[int], memories: Sequence[Memory]
    ) -> Scores:
        """Scores the models that serve a block's clients; ``own`` has a leading client axis."""
        e, kept = self.models.experiment, stacked([memory.kept for memory in memories])
        answers = self.models.of(common, own, kept, memories[0].trained, clients)
        queries = self.queries(clients)
        columns = self._columns(answers, queries)
        if (split := self.models.data.validation) is not None:
            held_out = padded(split, split.rows, clients)
            validated = self._columns(answers, held_out)
            columns |= {VALIDATION + name: values for name, values in validated.items()}
        if e.elsewhere:
            columns |= self._elsewhere(answers, clients)
        return Scores(columns, queries.counted.sum(1))

    def _elsewhere(self, serve: Mapping[str, Answer], clients: Sequence[int]) -> dict[str, Tensor]:
        """Returns means of scores on the rows of each client's others; NaN without others."""
        models = {which: served for which, served in serve.items() if which != COMMON}
        each, others = list[dict[str, Tensor]](), [self.others.get(c, []) for c in clients]
        for place in range(max(1, *map(len, others))):
            pairs = zip(others, clients, strict=True)
            visited = [some[place] if some else client for some, client in pairs]
            each.append(self._columns(models, self.queries(visited)))
        found = {name: torch.stack([one[name] for one in each]).nanmean(0) for name in each[0]}
        for values in found.values():
            values[[not some for some in others]] = torch.nan
        return {name + ELSEWHERE: values for name, values in found.items()}

    @cached_property
    def others(self) -> dict[int, list[int]]:
        """By client that trains and is scored, the others with test rows for it, too."""
        e, data = self.models.experiment, self.models.data
        aside, never = {*data.left_out, *data.unscored, *e.withdrawn}, unseen(e, data.names)
        some = scored(e, [c for c in range(e.num_clients) if c not in aside], never)
        groups = groups_of(e.seed, [c for c in some if c not in never], e.elsewhere)
        places = ((group, at) for group in groups for at in range(len(group)))
        return {group[at]: [*group[at + 1 :], *group[:at]][: e.elsewhere] for group, at in places}

    @staticmethod
    def joined(parts: Sequence[Scores], blocks: Sequence[Sequence[int]]) -> Scores:
        """Joins the scores of blocks of clients into one, in the order of their positions."""
        order = np.argsort(np.concatenate([np.asarray(some) for some in blocks])).tolist()
        every: Scores = tree_map(Tensor.cpu, concatenated(parts))
        return select(every, order)

    def _columns(self, serve: Mapping[str, Answer], queries: Queries) -> dict[str, Tensor]:
        said, y = self.models.answers(serve, queries)
        columns: dict[str, Tensor] = {}
        for which in self.models.suffixes:
            if which == COMMON and which not in serve:
                continue
            # A client that has not trained may be served by a fine-tuned model already.
            outputs = said.get(which, said[""])
            for metric in self.models.metrics:
                columns[metric.name + which] = measure(metric, outputs, y, queries.counted)
        return columns

    def queries(self, clients: Sequence[int]) -> Queries:
        """Returns the test rows that clients are scored on."""
        e, test = self.models.experiment, self.models.data.test
        return padded(test, {c: query_rows(e, test, c) for c in clients}, clients)
