"""Low-rank adapters by one setting: a plain loop, what travels, and files for ``peft``."""

import copy
import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import engram
from engram.networks.vision import torchvision
from engram.settings.errors import Refused
from engram.settings.method_for_data import forecast
from tests.samples import sampled

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
            for name in filter(lambda name: not is_personal(name), run.model):
                leaves = [each.get_parameter(name) for each in nets]
                mean = torch.stack(leaves).mean(0)
                for leaf in leaves:
                    leaf.copy_(mean)
    return nets


@pytest.mark.parametrize(
    ("adapters", "make", "is_personal"),
    [
        pytest.param("shared", image_net, lambda name: False, marks=pytest.mark.full),
        pytest.param("frozen-a", image_net, lambda name: False, marks=pytest.mark.full),
        pytest.param("shared-a", image_net, lambda name: "lora_B" in name, marks=pytest.mark.full),
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
    before, after = (dict(each.named_parameters()) for each in (make(), given))
    assert before.keys() == after.keys()  # the given model stays as it is
    assert all(leaf.equal(after[name]) for name, leaf in before.items())


def live_copies(shape):
    """Number of arrays of a shape that are anywhere in this process."""
    gc.collect()
    found = (x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.shape == shape)
    return len({x.untyped_storage().data_ptr() for x in found})


@pytest.mark.parametrize("drawn", sampled([False, True], [True]))
def test_the_frozen_model_is_held_once_and_stored_nowhere(drawn, tmp_path):
    wide, counts = (16 * 1000, 8), []

    def make():
        torch.manual_seed(0)
        return get_peft_model(Images(1000), LoraConfig(r=1, target_modules=["mixed"]))

    def count(number):
        counts.append(live_copies(wide[::-1]))
        return 1.0

    model = make if drawn else make()
    settings = {"schedule": count, "num_rounds": 2, "eta": 1e-4, "adapters": "shared-a"}
    run = simulate(image_rows(), model, tmp_path / "run", **settings)
    assert set(counts) == {1}
    told = forecast(run.experiment, run.learned.kind, run.learned.data.example)
    assert "receives 62.5 KiB, sends 62.5 KiB and keeps 0.0 KiB;" in told  # 16,000 numbers, and 8
    base = sum(leaf.nbytes for leaf in Images(1000).parameters())
    assert told.endswith(f", beside frozen parameters of {base / 1024:,.1f} KiB")
    sizes = [path.stat().st_size for path in run.folder.rglob("*") if path.is_file()]
    assert 4 * wide[0] < max(sizes) < 4 * wide[0] + 10000  # A, and what describes it
    assert sum(sizes) < 4 * wide[0] * wide[1]  # the frozen layer of the same inputs


@pytest.mark.full
@pytest.mark.parametrize(
    ("adapters", "dtype"), [("shared-a", torch.bfloat16), ("dual", torch.float32)]
)
def test_peft_opens_each_clients_adapter(adapters, dtype, tmp_path):
    config = LoraConfig(r=2, target_modules=["c_attn", "wte"], rank_pattern={"wte": 1})
    model = get_peft_model(language_model(dtype), config)
    settings = {"task": "next-token", "metrics": "perplexity", "num_classes": 11, "eta": 0.5}
    run = simulate(text_rows(), model, tmp_path / "run", adapters=adapters, **settings)
    tokens = torch.tensor(text_rows()[0][0]["input_ids"])
    found = []
    for client in range(2):
        folder = run.export(client, out=tmp_path / f"{client}", format="peft")
        whole = engram.load_model(run.export(client, out=tmp_path / f"{client} whole"))
        opened = PeftModel.from_pretrained(language_model(dtype), folder).eval()
        with torch.no_grad():
            found += [opened(tokens).logits.float(), whole(tokens).logits.float()]
        close = 1e-6 if dtype == torch.float32 else 0.02
        torch.testing.assert_close(*found[-2:], rtol=close, atol=close)
        assert (folder / "adapter_model.safetensors").stat().st_size < 6000
    assert not torch.allclose(found[0], found[2], atol=1e-3)
    with pytest.raises(Refused, match=r"PeftModel.from_pretrained opens the others.*'peft'"):
        engram.load_model(folder)


def test_what_adapters_cannot_be_is_refused(tmp_path):
    other = image_net(use_rslora=True)
    for model, settings, words in (
        ("mlp", {"adapters": "dual"}, "adapters must be shared where the network is built in"),
        (Images(), {"adapters": "dual"}, "model must be a peft model with LoRA where adapters is"),
        (image_net(), {"adapters": "personal"}, "personal must be less than all parameters"),
        (image_net(), {"adapters": "shared-a", "personal": "!*lora_A*"}, "personal must be patt"),
        (other, {"adapters": "dual"}, "peft configuration must be plain LoRA where adapters is"),
    ):
        with pytest.raises(Refused, match=words):
            simulate(image_rows(), model, tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()
    run = simulate(image_rows(), Images(), tmp_path / "run")
    with pytest.raises(Refused, match="format must be peft only for a peft model with LoRA"):
        run.export(0, out=tmp_path / "out", format="peft")
