"""Networks of users, and rows for them: those of the contract table."""

import numpy as np
import torch
from torch import nn

from engram.networks.optimizers import optimizer, schedule
from engram.networks.registry import model
from engram.networks.vision import torchvision
from engram.scoring.metrics import metric
from engram.scoring.tasks import loss

CLIENTS = 4
PERSONAL = "kept/personal model/"  # before names of what clients keep of the model


class Normed(nn.Module):
    """A residual network with batch norm and dropout."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = norm(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.first(x)).tanh()
        x = x + self.second(x)
        return self.head(self.drop(x.mean((2, 3))))


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.net = nn.LSTM(5, 6, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(6, 7)

    def forward(self, tokens):
        return self.head(self.net(self.embed(tokens))[0])


class TiedCharacters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.mix = nn.TransformerEncoderLayer(6, 2, 8, 0.1, "gelu", batch_first=True)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.mix(self.embed(tokens), src_mask=mask, is_causal=True))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers, self.codes = nn.Linear(3, 4), nn.Embedding(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, numbers, codes):
        return self.head((self.numbers(numbers) + self.codes(codes)).tanh())


def language_model():
    """A language model whose attention is trained by low-rank adapters; all else is frozen."""
    torchvision()  # which transformers imports
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 7, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    marks = {"bos_token_id": 0, "eos_token_id": 0}
    base = GPT2LMHeadModel(GPT2Config(**sizes, **marks, attn_implementation="eager"))
    adapters = {"target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_dropout": 0.1}
    return get_peft_model(base, LoraConfig(r=2, task_type="CAUSAL_LM", **adapters))


def clients():
    return np.repeat(np.arange(CLIENTS), 30)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(30 * CLIENTS, *shape)).astype(np.float32)


def whole(most, *shape, seed=0):
    return np.random.default_rng(seed).integers(most, size=(30 * CLIENTS, *shape))


class Viewed(nn.Module):
    """Pools images of several channels, and takes what comes of them for rows by ``view``."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        return self.head(x.view(x.size(0), -1))


IMAGES = {"x": numbers(1, 6, 6), "y": np.arange(30 * CLIENTS) % 3}
TEXT = {"x": whole(7, 8), "y": whole(7, 8, seed=1)}
CASES = {
    "sequential": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
        IMAGES,
        {},
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        ),
        IMAGES,
        {},
    ),
    "sequence": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        IMAGES | {"x": numbers(3, 8)},
        {},
    ),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        {"x": numbers(2, 4, 4, 4), "y": np.array(["ant", "bee", "cat"])[IMAGES["y"]]},
        {},
    ),
    "viewed images": (Viewed, IMAGES | {"x": numbers(3, 6, 6)}, {}),
    "batch norm and dropout": (Normed, IMAGES, {}),
    "fixed statistics": (Normed, IMAGES, {"statistics": "fixed"}),
    "group norm": (lambda: Normed(lambda width: nn.GroupNorm(2, width)), IMAGES, {}),
    "recurrent": (Characters, TEXT, {"task": "next-token", "metrics": "perplexity,ece"}),
    "tied transformer": (TiedCharacters, TEXT, {"task": "next-token"}),
    "two inputs": (
        TwoInputs,
        {"x.numbers": numbers(3), "x.codes": whole(5), "y": np.arange(30 * CLIENTS) % 3},
        {},
    ),
    "low-rank adapters": (
        language_model,
        {"x.input_ids": TEXT["x"], "x.attention_mask": whole(2, 8) | (np.arange(8) < 4)}
        | {"y": TEXT["y"]},
        {"task": "next-token"},
    ),
    "regression": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1)),
        {"x": numbers(5), "y": numbers(seed=1)},
        {"task": "regression"},
    ),
    "multi-label": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)),
        {"x": numbers(5), "y": whole(2, 4)},
        {"task": "multi-label", "metrics": "auc,f1,brier"},
    ),
    "huber": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)),
        {"x": numbers(5), "y": numbers(2, seed=1)},
        {"task": "regression", "loss": "huber-loss", "metrics": "mae,r2"},
    ),
    "built-in resnet": ("resnet", IMAGES, {"hidden": "4,6"}),
    "built-in resnet with group norm": ("resnet", IMAGES, {"hidden": "4,6", "norm": "group"}),
    "built-in lstm": ("lstm", TEXT, {"hidden": "5,6", "task": "next-token"}),
    "built-in transformer": ("transformer", TEXT, {"hidden": "8,8", "task": "next-token"}),
    "masks": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1)),
        IMAGES | {"x": numbers(1, 6, 6), "y": whole(2, 6, 6)},
        {"loss": "dice", "optimizer": "heavy-ball", "schedule": "halving", "metrics": "overlap"},
    ),
    "weights of classes": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
        IMAGES,
        {"loss": "weighted"},
    ),
}


def dice(outputs, targets):
    p = outputs.softmax(1)[:, 1]
    return 1 - 2 * (p * targets).sum() / (p.sum() + targets.sum() + 1)


def weighted(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 8.0, 3.0]))


def overlap(outputs, targets):
    found = outputs.argmax(1)
    return (found & targets).sum() / (found | targets).sum()


def heavy_ball(gradient, momentum):
    momentum = 0.5 * momentum + gradient
    return momentum, momentum


def halving(server_round):
    return 0.5 ** (server_round - 1)


# Whole numbers that are not uint8, with the channels last, are images here.
# They are of 64 pixels: batch norm at its last layers, of one pixel and few rows that repeat, would
# enlarge rounding a hundred thousand times.
LARGER = {"x": whole(3, 64, 64, 3)[:40], "y": IMAGES["y"][:40], "task": clients()[::3]}


def register_functions():
    """Makes what networks are trained by known."""
    for function in (nn.functional.huber_loss, dice, weighted):
        loss(function)
    metric(low=0, high=1)(overlap)
    optimizer(heavy_ball)
    schedule(halving)


def register():
    """Makes the networks of the table known, too."""
    register_functions()
    for case, (make, _, _) in CASES.items():
        if not isinstance(make, str):
            model(make, case)


if __name__ == "networks":  # as a plug-in, which imports no tests
    register()
