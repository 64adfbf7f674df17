"""A server that moves by what is written of it, and clients that follow it."""

import pytest
import torch

from engram.core.method import FromMean, Method, Server, Update
from engram.core.slots import replace, sends
from engram.guards.compression import PLAIN, Layout, Quantized, TopK
from engram.guards.delta_broadcast import CODE, VERSION, advanced, broadcast, depth_of
from tests import support


def uniform(version):
    stream = torch.Generator().manual_seed(version)
    return lambda size: torch.rand(size, generator=stream)


def method(coder, *, whole):
    """A server of a model, which every client receives, and of a slot of its own."""
    start = {"model": {"w": support.draw(1, 30, 20).float(), "b": torch.ones(3)}}
    layout = Layout({"model/b": PLAIN, "model/w": coder}, {"model/b": (3,), "model/w": (30, 20)})
    server = Server(
        start | {"own": torch.zeros(())},
        sends("model"),
        FromMean(lambda server, mean: replace(server, mean) | {"own": server["own"] + 1}),
    )
    plain = Method(server, None, None, {"model": "model", "own": "statistic"})
    return broadcast(plain, layout, whole=whole, draw=uniform), layout


def merged(made, server, t):
    """The server after a round, and the model that was to be sent."""
    step = {"w": 0.1 * support.draw(t, 30, 20).float(), "b": torch.full((3,), float(t))}
    wanted = {"w": server["model"]["w"] + step["w"], "b": step["b"]}
    return made.server.merge.merge(server, Update({"model": wanted}, 1)), wanted


@pytest.mark.parametrize("coder", [Quantized(8), TopK(0.1)])
def test_a_server_of_whole_slots_has_what_its_bytes_say(coder):
    made, layout = method(coder, whole=True)
    server = made.server.start
    for t in range(1, 6):
        found = layout.decode(server[CODE])
        assert server["model"]["w"].equal(found["model/w"])
        assert server["model"]["b"].equal(found["model/b"])
        server, _ = merged(made, server, t)
        assert (int(server[VERSION]), float(server["own"])) == (t, t)


@pytest.mark.parametrize("coder", [TopK(0.1), Quantized(4)])
def test_clients_that_read_all_changes_have_the_servers_slots_to_the_bit(coder):
    made, layout = method(coder, whole=False)
    server, depth = made.server.start, depth_of(layout)
    assert depth * layout.size < layout.plain_size
    versions = [server["model"]]
    for t in range(1, depth + 3):
        server, _ = merged(made, server, t)
        versions.append(server["model"])
    for missed in range(1, depth + 1):
        held = versions[-1 - missed]
        found = {f"model/{name}": leaf for name, leaf in held.items()}
        for code in server[CODE][depth - missed :]:
            found = advanced(layout, found, layout.decode(code))
        assert found["model/w"].equal(server["model"]["w"])
        assert found["model/b"].equal(server["model"]["b"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_server_that_is_left_alone_comes_to_what_was_to_be_sent(whole):
    made, _ = method(TopK(0.1), whole=whole)
    server, wanted = made.server.start, support.draw(9, 30, 20).float()
    first = {"w": wanted, "b": torch.zeros(3)}
    server = made.server.merge.merge(server, Update({"model": first}, 1))
    for _ in range(40):
        if whole:
            break
        same = {"model": {"w": server["model"]["w"], "b": torch.zeros(3)}}
        server = made.server.merge.merge(server, Update(same, 1))
    residual = server["broadcast-residual-model"]["w"]
    if whole:  # the first code of the start left something out, too
        assert not residual.equal(torch.zeros(30, 20))
    else:
        torch.testing.assert_close(server["model"]["w"], wanted, rtol=0, atol=1e-5)
        assert residual.abs().max() == 0
