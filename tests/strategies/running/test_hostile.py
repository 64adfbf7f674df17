"""Five thousand replies that nobody honest would send: none touches the model or stops the run."""

import tracemalloc
from collections import Counter
from itertools import chain
from typing import get_args

import numpy as np
import pytest

from engram.core.method import FromEach
from engram.core.slots import mean_of, replace
from engram.guards.merge import Merge
from engram.settings.errors import RunStopped
from engram.strategies.running.reply_border import Kind
from engram.wire.messages import Error, Reply
from tests.samples import sampled
from tests.strategies.running.drafts import EVALUATE, NASTY, TRAIN, Draft, pick
from tests.strategies.running.forgeries import alter, clutter, exploded
from tests.support import assert_same, check_lines, grid, small, strategy_of, trainer

NODES, HOSTILE, ROUNDS = 10, 4, 5  # two clients a node: less than half are hostile
KINDS = set(get_args(Kind)) - {"range"}  # of methods that send claims: see test_bounding
pytestmark = pytest.mark.filterwarnings("error")  # nothing overflows, nothing is guessed at


def asking_for_each(rounds):
    """The same rounds, whose server takes the mean of the clients' updates itself."""
    merge = rounds.merge
    method = merge.method
    each = FromEach(lambda server, updates: replace(server, mean_of(updates, "clients")))
    method = method._replace(server=method.server._replace(merge=each))
    return rounds._replace(merge=Merge(merge.settings, method, merge.running, merge.noise))


class Siege:
    """A real federation whose rounds are asked once, and answered as often as wanted."""

    def __init__(self, method="local-moml", *, each=False, seed=0, nodes=NODES):
        e = small(method=method, clients_per_round=20, validation_fraction=0)
        self.rng = np.random.default_rng(seed)
        self.grid = grid(trainer(e), nodes)
        self.strategy, model = strategy_of(e, self.grid)
        if each:
            self.strategy.rounds = asking_for_each(self.strategy.rounds)
        self.arrays = model
        self.number = 0
        self.past = []  # the honest replies of each round that is over
        self.ask_to_train()
        self.next_round()

    def ask_to_train(self):
        self.number += 1
        self.forgeries, self.merge = TRAIN, self.strategy.aggregate_train
        self._ask(self.strategy.configure_train)

    def ask_to_evaluate(self):
        self.forgeries, self.merge = EVALUATE, self.strategy.aggregate_evaluate
        self._ask(self.strategy.configure_evaluate)

    def _ask(self, configure):
        self.asked = list(configure(self.number, self.arrays, {}, self.grid))
        self.honest = list(self.grid.ask(self.asked, timeout=60))
        self.calm = {}

    def next_round(self):
        self.arrays, _ = self.merge(self.number, self.honest)
        self.past.append(self.honest)

    def merged(self, replies):
        return self.merge(self.number, replies)

    def without(self, hostile):
        """What comes of a round in which these nodes say nothing, and the scores."""
        if hostile not in self.calm:
            said = [reply for node, reply in enumerate(self.honest) if node not in hostile]
            self.calm[hostile] = self.merged(said), self.strategy.evaluation
        return self.calm[hostile]

    def forged(self, node, forgeries=None):
        """Returns a hostile answer of a node, and the kinds that it may be refused as."""
        rng, forgeries = self.rng, forgeries or self.forgeries
        if rng.random() < 0.03:
            return Draft(pick(rng, self.past)[node]).seal(self.asked[node]), {"round"}
        draft = Draft(self.honest[node])
        if rng.random() < 0.2:
            clutter(draft, rng)
        chosen = [pick(rng, forgeries)]
        others = [f for f in forgeries if f.part not in ("whole", chosen[0].part)]
        if others and chosen[0].part != "whole" and rng.random() < 0.2:
            chosen.append(pick(rng, others))  # spoilt twice, it may be refused for either
        for forgery in chosen:
            forgery.spoil(draft, rng)
        return draft.seal(self.asked[node]), {forgery.kind for forgery in chosen}

    def volley(self):
        """Returns honest and hostile replies in some order, who is hostile, and the kinds."""
        rng = self.rng
        turn = int(rng.integers(NODES))
        hostile = tuple(sorted((turn + i) % NODES for i in range(HOSTILE)))
        forged = {node: self.forged(node) for node in hostile}
        said = {n: forged[n][0] if n in forged else self.honest[n] for n in range(NODES)}
        replies = [said[node] for node in rng.permutation(NODES).tolist()]
        return replies, hostile, [kinds for _, kinds in forged.values()]


def rejections(metrics):
    named = ((key.removeprefix("rejected-"), n) for key, n in metrics.items() if "rejected" in key)
    return Counter(dict(named))


def rest(metrics):
    return {key: value for key, value in metrics.items() if "rejected" not in key}


def check_counts(found, kinds):
    """Each is counted once, as what it is, or as one of the things that it is."""
    assert found.total() == len(kinds)
    assert Counter(chain(*(some for some in kinds if len(some) == 1))) <= found
    assert found.keys() <= set(chain(*kinds))


# (100 + 75 + 75) volleys in each of 5 rounds, of 4 replies: 5,000; and a quarter of each before.
VOLLEYS = [("local-moml", False, 100), ("fedavg", False, 75), ("local-moml", True, 75)]
QUICK = [(method, each, volleys // 4) for method, each, volleys in VOLLEYS]


@pytest.mark.parametrize(("method", "each", "volleys"), sampled([*QUICK, *VOLLEYS], QUICK))
def test_hostile_replies_change_nothing_and_are_counted_by_kind(method, each, volleys, lines):
    siege, counted = Siege(method, each=each), Counter()
    for _ in range(ROUNDS):
        siege.ask_to_train()
        for _ in range(volleys):
            replies, hostile, kinds = siege.volley()
            arrays, metrics = siege.merged(replies)
            (expected, calm), _ = siege.without(hostile)
            assert_same(arrays, expected)  # bit for bit
            assert rest(metrics) == dict(calm)
            check_counts(rejections(metrics), kinds)
            counted += rejections(metrics)
        siege.next_round()
    assert counted.total() == volleys * ROUNDS * HOSTILE
    assert counted.keys() == KINDS
    assert not exploded
    check_lines(lines, 600)


def test_hostile_scores_change_nothing_and_are_counted_by_kind(lines):
    # 60 volleys after each of 5 rounds, of 4 replies: 1,200.
    siege, counted = Siege(), Counter()
    siege.ask_to_evaluate()
    siege.past = [siege.honest]
    for _ in range(ROUNDS):
        siege.number += 1
        siege.ask_to_evaluate()
        for _ in range(60):
            replies, hostile, kinds = siege.volley()
            calm, expected = siege.without(hostile)
            metrics = siege.merged(replies)
            assert rest(metrics) == dict(calm)
            assert siege.strategy.evaluation.clients == expected.clients
            np.testing.assert_equal(siege.strategy.evaluation.columns, expected.columns)
            check_counts(rejections(metrics), kinds)
            counted += rejections(metrics)
        siege.past.append(siege.honest)
    assert counted.total() == 60 * ROUNDS * HOSTILE
    assert counted.keys() == KINDS - {"names", "shapes", "size", "non-finite"}
    check_lines(lines, 600)


def test_what_a_reply_claims_to_be_takes_no_room():
    siege = Siege()
    siege.ask_to_train()
    arrays = [forgery for forgery in TRAIN if forgery.part == "arrays"]
    volleys = []
    for _ in range(60):
        forged = [siege.forged(node, arrays)[0] for node in range(HOSTILE)]
        long = Reply(siege.asked[HOSTILE], {}, Error(2, "\n" * 10**7))
        volleys.append([*forged, long, *siege.honest[HOSTILE + 1 :]])
    siege.merged(volleys[0])  # what is made once
    tracemalloc.start()
    try:
        for replies in volleys:
            siege.merged(replies)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20  # terabytes are claimed


def test_reasons_of_clients_that_failed_are_one_short_line_each(lines):
    siege = Siege()
    siege.ask_to_train()
    for reason in filter(None, NASTY):
        draft = Draft(siege.honest[3])
        (one, other), (loss, _) = draft.clients["ids"], draft.clients["losses"]
        draft.metrics["num-examples"] = siege.strategy.roster.examples[one]
        draft.clients.update(ids=[one], losses=[loss], failed=[other], reasons=[reason])
        replies = [*siege.honest[:3], draft.seal(siege.asked[3]), *siege.honest[4:]]
        _, metrics = siege.merged(replies)
        assert (metrics["left-out"], rejections(metrics)) == (1, Counter())
    check_lines(lines, 600)
    assert len(lines) == len(NASTY) - 2


def test_where_nobody_is_honest_the_run_stops_with_one_line():
    siege = Siege()
    siege.ask_to_train()
    whole = [forgery for forgery in TRAIN if forgery.kind != "size"]  # which takes others to see
    for _ in range(50):
        with pytest.raises(RunStopped) as caught:
            siege.merged([siege.forged(node, whole)[0] for node in range(NODES)])
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 5000


def test_one_of_two_models_beyond_measure_is_left_out():
    siege = Siege(nodes=2)
    siege.ask_to_train()
    for value in (1e30, 1e10, 1e7):  # the first overflows a norm of float32
        draft = Draft(siege.honest[0])
        alter(draft, "model/dense0.bias", lambda array, value=value: array.fill(value))
        arrays, metrics = siege.merged([draft.seal(siege.asked[0]), siege.honest[1]])
        assert_same(arrays, siege.without((0,))[0][0])
        assert rejections(metrics) == {"size": 1}
