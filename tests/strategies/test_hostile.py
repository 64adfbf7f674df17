"""Five thousand replies that nobody honest would send: none touches the model or stops the run."""

import tracemalloc
from collections import Counter
from itertools import chain
from typing import get_args

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

from engram.core.method import FromEach
from engram.core.slots import mean_of, replace
from engram.guards.merge import Merge
from engram.settings.errors import RunStopped
from engram.strategies.reply_border import Kind
from engram.wire.wire import to_record
from tests.samples import sampled
from tests.strategies.drafts import EVALUATE, NASTY, TRAIN, Draft, pick
from tests.strategies.forgeries import alter, clutter, exploded
from tests.support import check_lines, grid, small, strategy_of, trainer

NODES, HOSTILE, OUTSIDERS, ROUNDS = 10, 4, 1, 5  # two clients a node: less than half are hostile
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
        self.arrays = to_record(model)
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
        self.asked = list(configure(self.number, self.arrays, ConfigRecord(), self.grid))
        self.honest = list(self.grid.send_and_receive(self.asked))
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

    def outsider(self):
        """Returns an honest or hostile reply from elsewhere, or to something else."""
        rng = self.rng
        node = int(rng.integers(len(self.asked)))
        plain = [forgery for forgery in self.forgeries if forgery.part != "whole"]
        reply, _ = self.forged(node, plain)
        if rng.random() < 0.3:
            reply = Draft(self.honest[node]).seal(self.asked[node])
        if rng.random() < 0.5:
            sources = {*range(NODES + 2), -1, 2**63, 10**18} - {reply.metadata.src_node_id}
            reply.metadata.__dict__["_src_node_id"] = pick(rng, sorted(sources))
            return reply, "sender"
        if rng.random() < 0.3:
            return pick(rng, pick(rng, self.past)), "stray"
        names = ["", "nonsense", "0", "-1", " 1", "x" * 10**5, "9" * 20, "\n"]
        reply.metadata.__dict__["_reply_to_message_id"] = pick(rng, names)
        return reply, "stray"

    def volley(self):
        """Returns honest and hostile replies in some order, who is hostile, and the kinds."""
        rng = self.rng
        turn = int(rng.integers(NODES))
        hostile = tuple(sorted((turn + i) % NODES for i in range(HOSTILE)))
        forged = {node: self.forged(node) for node in hostile}
        first = {n: forged[n][0] if n in forged else self.honest[n] for n in range(NODES)}
        order = rng.permutation(NODES).tolist()
        replies = [first[node] for node in order]
        kinds = [kinds for _, kinds in forged.values()]
        for _ in range(OUTSIDERS):
            if rng.random() < 0.4:  # a second answer, which may be the same, old, or worse
                node = pick(rng, order)
                start = next(i for i, reply in enumerate(replies) if reply is first[node])
                again = [
                    lambda node=node: first[node],
                    lambda node=node: Draft(pick(rng, self.past)[node]).seal(self.asked[node]),
                    lambda node=node: self.forged(node)[0],
                ]
                reply, kind = pick(rng, again)(), "replay"
            else:
                start, (reply, kind) = -1, self.outsider()
            replies.insert(int(rng.integers(start + 1, len(replies) + 1)), reply)
            kinds.append({kind})
        return replies, hostile, kinds


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


# (80 + 60 + 60) volleys in each of 5 rounds, of 4 + 1 replies: 5,000; and a quarter of each before.
VOLLEYS = [("local-moml", False, 80), ("fedavg", False, 60), ("local-moml", True, 60)]
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
            assert arrays == expected  # bit for bit
            assert rest(metrics) == dict(calm)
            check_counts(rejections(metrics), kinds)
            counted += rejections(metrics)
        siege.next_round()
    assert counted.total() == volleys * ROUNDS * (HOSTILE + OUTSIDERS)
    assert counted.keys() == KINDS
    assert not exploded
    check_lines(lines, 600)


def test_hostile_scores_change_nothing_and_are_counted_by_kind(lines):
    # 60 volleys after each of 5 rounds, of 4 + 1 replies: 1,500.
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
    assert counted.total() == 60 * ROUNDS * (HOSTILE + OUTSIDERS)
    assert counted.keys() == KINDS - {"names", "shapes", "size", "non-finite"}
    check_lines(lines, 600)


def test_what_a_reply_claims_to_be_takes_no_room():
    siege = Siege()
    siege.ask_to_train()
    arrays = [forgery for forgery in TRAIN if forgery.part == "arrays"]
    volleys = []
    for _ in range(60):
        forged = [siege.forged(node, arrays)[0] for node in range(HOSTILE)]
        long = Message(Error(2, "\n" * 10**7), reply_to=siege.asked[HOSTILE])
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
        assert arrays == siege.without((0,))[0][0]
        assert rejections(metrics) == {"size": 1}


def test_an_error_of_the_server_answers_for_a_node_and_one_of_another_node_does_not():
    siege = Siege()
    siege.ask_to_train()
    server = siege.asked[5].metadata.src_node_id
    for source, kind in ((server, "error"), (3, "sender")):
        error = Message(Error(3, "gone"), reply_to=siege.asked[5])
        error.metadata.__dict__["_src_node_id"] = source
        _, metrics = siege.merged([*siege.honest[:5], error, *siege.honest[6:]])
        assert rejections(metrics) == {kind: 1}
        assert metrics["left-out"] == 2
