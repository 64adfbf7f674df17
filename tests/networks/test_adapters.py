"""Low-rank adapters by one setting: a plain ``peft`` loop, what travels, and files that it opens."""

import copy
import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import engram
from engram.networks.vision import torchvision

torchvision()  # which transformers imports, and peft that
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

CLIENTS, STEPS, ROUNDS, ETA = 3, 2, 3, 0.05


class Images(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3)
        self.mixed = nn.Linear(16 * width, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.mixed(self.first(x).relu().flatten(1)).relu())


def image_net(*, seed=0, **more):
    """Adapters of ranks 2 and 3, whose B is not 0, so that A has a gradient at once."""
    torch.manual_seed(seed)
    ranks = {"r": 2, "rank_pattern": {"mixed": 3}, "target_modules": ["first", "mixed"]}
    return get_peft_model(Images(), LoraConfig(init_lora_weights=False, **ranks, **more))


def two_adapters():
    net = image_net()
    config = LoraConfig(r=1, target_modules=["mixed"], lora_alpha=2, init_lora_weights=False)
    net.add_adapter("personal", config)
    return net


def image_rows():
    rng = np.random.default_rng(0)
    shape = (12, 1, 6, 6)
    return [(rng.normal(size=shape).astype("float32"), np.arange(12) % 3) for _ in range(CLIENTS)]


def language_model(dtype=torch.float32):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    marks = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(**sizes, **marks, attn_implementation="eager")
    return GPT2LMHeadModel(config).to(dtype)


def text_rows():
    rng = np.random.default_rng(1)
    return [({"input_ids": t[:, :8]}, t[:, 1:]) for t in rng.integers(11, size=(CLIENTS, 12, 9))]


def simulate(rows, model, folder, **settings):
    settings = {"method": "fedavg", "num_rounds": ROUNDS, "eta": ETA, "images": "none"} | settings
    settings |= {"local_steps": STEPS, "batch_size": 100, "clients_per_round": CLIENTS}
    return engram.simulate(rows, model=model, out=folder, progress=False, **settings)


def plain_loop(run, net, is_personal):
    """Federated averaging in plain torch: the shared parameters, and each client's own ones."""
    rows = [
        (torch.tensor(x[part]), torch.tensor(y[part]))
        for c, (x, y) in enumerate(image_rows())
        for part in [run.split(c)["train"]]
    ]
    nets = [copy.deepcopy(net) for _ in range(CLIENTS)]
    for _ in range(ROUNDS):
        for each, (x, y) in zip(nets, rows, strict=True):
            optimizer = torch.optim.SGD([w for w in each.parameters() if w.requires_grad], lr=ETA)
            for _ in range(STEPS):
                optimizer.zero_grad()
                cross_entropy(each(x), y).backward()
                optimizer.step()
        with torch.no_grad():
            for name, *leaves in zip(*(dict(each.named_parameters()) for each in nets[:1])):
                if is_personal(name):
                    continue
                leaves = [each.get_parameter(name) for each in nets]
                mean = torch.stack(list(leaves)).mean(0)
                for leaf in leaves:
                    leaf.copy_(mean)
    return nets


@pytest.mark.parametrize(
    ("adapters", "make", "is_personal"),
    [
        ("shared", image_net, lambda name: False),
        ("frozen-a", image_net, lambda name: False),
        ("shared-a", image_net, lambda name: "lora_B" in name),
        ("dual", two_adapters, lambda name: ".personal." in name),
    ],
)
def test_adapters_learn_as_in_a_plain_loop_and_alone_travel(adapters, make, is_personal, tmp_path):
    given = make()
    run = simulate(image_rows(), given, tmp_path / "run", adapters=adapters)
    net = make()
    if adapters == "dual":
        net.base_model.set_adapter(["default", "personal"])
    if adapters == "frozen-a":
        for name, leaf in net.named_parameters():
            leaf.requires_grad_("lora_B" in name)
    nets = plain_loop(run, net, is_personal)
    trained = {name for name, leaf in net.named_parameters() if leaf.requires_grad}
    assert run.model.keys() == {name for name in trained if not is_personal(name)}
    sent = sum(leaf.numel() for leaf in run.model.values())
    assert run.results["client-bytes"] == 2 * 4 * sent
    for client, each in enumerate(nets):
        own = run.personal_model(client)
        assert own.keys() == trained
        for name, leaf in own.items():
            torch.testing.assert_close(leaf, each.get_parameter(name).detach(), rtol=0, atol=1e-6)
    for (name, leaf), (_, before) in zip(given.named_parameters(), make().named_parameters()):
        assert leaf.equal(before), name  # the given model stays as it is
