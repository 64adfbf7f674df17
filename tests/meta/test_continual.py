"""Tasks that come and go: LocalMOML learns from a stream without end, in constant memory."""

import gc
import math

import torch

from engram.cohort.dense_gradients import SQUARED_ERROR
from engram.cohort.stacked_models import Layout, dense_stacks, expand
from engram.meta.meta_gradient import fine_tune
from engram.meta.single_node import Episode, local_moml
from engram.networks.built_in import build_model


def stream(seed):
    """Yields the tasks (amplitude, phase) that are there: every other iteration one arrives, and
    it leaves ten arrivals later. None comes back."""
    generator = torch.Generator().manual_seed(seed)
    present = []
    while True:
        if len(present) >= 10:
            present.pop(0)
        present.append(waves(1, generator)[0])
        yield from [torch.stack(present)] * 2


def waves(count, generator):
    return torch.rand(count, 2, generator=generator) * torch.tensor(
        [4, math.pi / 2]
    ) + torch.tensor([1, 0])


def rows(tasks, count, generator):
    x = 10 * torch.rand(1, len(tasks), count, 1, generator=generator) - 5
    amplitude, phase = tasks.T[:, None, :, None, None]
    return x, amplitude * torch.sin(x + phase)


def numbers_alive():
    gc.collect()  # its type, not the object, is asked: a proxy of what is gone would raise
    return sum(x.numel() for x in gc.get_objects() if issubclass(type(x), torch.Tensor))


def test_a_stream_without_end_in_constant_memory():
    generator = torch.Generator().manual_seed(1)
    network = build_model("mlp", input_shape=(1,), outputs=1, hidden=(40, 40))
    start = network.init(generator)
    layout = Layout.of(start)
    loss = dense_stacks(layout, SQUARED_ERROR)
    steps = {"alpha": 0.01, "beta": 0.3, "eta": 0.01, "hessian": "first-order", "local_steps": 5}
    sizes = {"tasks_per_step": 3, "batch_size": 10, "initial_batch_size": 20}
    learner = local_moml(loss, **steps, **sizes)
    assert learner.memories == 0
    state, alive, met = learner.init(layout.pack([start])), [], set()
    for t, present in enumerate(stream(2)):
        met |= {tuple(task.tolist()) for task in present}
        (draw,) = learner.draws(t)
        tasks = torch.randperm(len(present), generator=generator)[: draw.tasks]
        if len(tasks) < draw.tasks:
            continue
        batches = tuple(rows(present[tasks], size, generator) for size in draw.sizes)
        state = learner.step(state, (Episode(tasks.unsqueeze(0), batches),))
        if t in (50, 150, 250):
            del batches, tasks
            alive.append(numbers_alive())
        if t == 250:
            break
    assert len(met) > 125
    assert alive[0] == alive[1] == alive[2]

    unseen = waves(50, generator)
    support, query = rows(unseen, 10, generator), rows(unseen, 100, generator)
    adapt = fine_tune(loss, lr=0.01, steps=10)
    before, after = (
        loss(adapt(expand(w, 50), support), query).mean().item()
        for w in (layout.pack([start]), state.w)
    )
    assert after < 0.8 * before
