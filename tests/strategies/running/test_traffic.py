"""Bytes that a client receives and sends in a round, against those of the messages themselves."""

import pytest
import torch

from engram.compare.report_rows import report_rows
from engram.compare.results import metrics_of
from engram.compare.text_tables import method_table
from engram.runs.run import Run
from engram.simulations.engine import simulate
from tests.samples import EIGHT
from tests.support import grid, small, strategy_of, trainer

PACES = {"clock": "drawn,step-seconds=1e-9,bandwidth=1000"}


def settings_of(method):
    if method == "fedbn":  # which needs a network with batch norm
        return {"method": method, "model": "resnet", "norm": "batch"}
    return {"method": method}


def bytes_in(message):
    values = [value for record in message.content.values() for value in record.values()]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def exchanged(e):
    """Bytes of the arrays in a round's messages, and in its replies, for each client."""
    g = grid(trainer(e))
    strategy, model = strategy_of(e, g)
    asked = [*strategy.configure_train(1, model, {}, g)]
    replies = [*g.ask(asked, timeout=60)]
    assert len(replies) == len(asked) == e.clients_per_round
    assert not any(reply.error for reply in replies)
    return [sum(map(bytes_in, messages)) / len(asked) for messages in (asked, replies)]


@pytest.mark.parametrize("method", EIGHT)
def test_a_round_takes_the_bytes_of_its_messages(method):
    e = small(num_clients=5, hidden="4", **settings_of(method))
    strategy, _ = strategy_of(e, grid(trainer(e)))
    received, sent = exchanged(e)
    assert strategy.rounds.shapes.traffic == received + sent
    told = f"receives {received / 1024:,.1f} KiB, sends {sent / 1024:,.1f} KiB"
    assert f"a round: a client of {method} {told} and keeps " in trainer(e).costs


@pytest.mark.parametrize("method", ["fedpac", "fedavg"])
def test_record_table_and_clock_agree_on_the_bytes(tmp_path, method):
    e = small(num_clients=5, num_rounds=1, eval_every=1, **settings_of(method), **PACES)
    simulate(e, tmp_path)
    size, record = sum(exchanged(e)), Run.open(tmp_path)
    assert record.results["client-bytes"] == size
    # A step takes no time: what remains is the transfer, at 1000 bytes a second.
    assert record.rows()[-1]["simulated-seconds"] == pytest.approx(size / 1000)
    runs = {method: [record]}
    table = method_table(report_rows(runs), metrics_of(runs)[0], {})
    assert table.rows[0][table.heading.index("KiB")] == f"{size / 1024:.0f}"


def test_clients_that_come_too_late_do_not_lower_the_bytes_of_one_that_trains(tmp_path):
    late = {"clock": f"{PACES['clock']},stragglers=0.5,slowdown=1e6", "deadline": 1e3}
    e = small(method="fedavg", num_clients=6, clients_per_round=6, compress="8-bit", **PACES | late)
    simulate(e, tmp_path)
    record = Run.open(tmp_path)
    row, size = record.rows()[-1], record.results["client-bytes"]
    assert (row["clients"], row["left-out"]) == (3, 3)
    assert (row["bytes-sent"], row["bytes-received"]) == (3 * size / 2, 3 * size / 2)
