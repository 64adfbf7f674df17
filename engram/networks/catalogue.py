"""Built-in networks that are modules: residual ones for images, for characters, and for texts."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core.checks import require
from engram.data.tokenizers import PADDING
from engram.networks.base import Adapters, Inputs, copied
from engram.networks.functional import NORMS
from engram.networks.module import Make
from engram.networks.registry import TEXTS, TORCHVISION
from engram.networks.vision import torchvision

_SMALLEST: Final = 16  # pixels of a side, of which cnn-valid leaves one
_EMBEDDING: Final = 8  # numbers for a character, as in LEAF's networks (Caldas et al., 2018)
_HEADS: Final = 4
_WINDOWS: Final = (3, 4, 5)  # words, as in Kim (2014)
_ALONE: Final = {"aux_logits": False, "init_weights": True}  # no second outputs in training
_OPTIONS: Final = {"googlenet": _ALONE, "inception_v3": _ALONE}
_OWN: Final = "personal"  # name of the adapter that each client keeps where there are two
_FIXED: Final = (".lora_A.", ".lora_embedding_A.")


def built_in_module(
    name: str, example: Inputs, outputs: int, hidden: Sequence[int], tokens: int = 0
) -> Callable[[], nn.Module]:
    """Returns the constructor of a built-in module.

    Args:
        name: One of these:

            - ``cnn-valid``, for images: the layers of ``cnn`` without padding, so that a side of n
              pixels becomes (n - 4) // 2 by each convolution. PFLlib's CNN with a width of 512.
            - ``resnet``, for images: a 3x3 convolution, a stage of one block (two 3x3 convolutions)
              for each width of ``hidden``, each of half the size of the one before, the mean over
              pixels, and a dense layer. Widths 16, 32 and 64 make a ResNet-8 (He et al., 2016).
            - ``lstm``, for characters: an embedding, an LSTM for each width, and a dense layer.
            - ``transformer``, for characters: a decoder of blocks (pre-norm, 4 heads, causal), one
              for each width, which are all alike, with learned positions.
            - ``text-mean``, for texts: the mean of the embeddings of a text's tokens, of the first
              width, then dense layers of the others (Joulin et al., 2017).
            - ``text-cnn``, for texts: embeddings of the first width, as many convolutions over 3, 4
              and 5 tokens each, the largest value of each in the text, then dense layers of the
              other widths (Kim, 2014).
            - ``torchvision:NAME``: a classification network of torchvision's, with no weights.
        example: Some rows, such as it will see.
        outputs: Number of outputs; of the networks for characters it is the number of characters.
        hidden: The widths.
        tokens: Number of tokens of the networks for texts.

    Raises:
        ValueError: If the name is unknown, or the widths or the rows do not suit it.
    """
    if name.startswith(TORCHVISION):
        return _torchvision(name.removeprefix(TORCHVISION), outputs)
    positive = len(hidden) > 0 and all(width > 0 for width in hidden)
    require(positive, "hidden", tuple(hidden), f"positive widths, at least one, for {name}")
    shape = tuple(example.shape[1:])
    if name in ("resnet", "cnn-valid"):
        expected = "images (channels, height, width)"
        require(len(shape) == 3, f"inputs of {name}", shape, expected)
        if name == "resnet":
            return partial(_resnet, shape[0], hidden, outputs)
        large = min(shape[1:]) >= _SMALLEST
        require(large, "inputs of cnn-valid", shape, f"{expected} of at least 16x16 pixels")
        return partial(_cnn_valid, shape, hidden, outputs)
    whole = len(shape) == 1 and example.dtype == torch.int64
    kind = f"{example.dtype} of shape {shape}"
    what = "tokens" if name in TEXTS else "characters"
    require(whole, f"inputs of {name}", kind, f"rows of {what}, as whole numbers (int64)")
    if name in TEXTS:
        return partial(_TextMean if name == "text-mean" else _TextCnn, tokens, hidden, outputs)
    if name == "lstm":
        return partial(_Lstm, outputs, hidden)
    alike = len(set(hidden)) == 1 and hidden[0] % _HEADS == 0
    require(alike, "hidden", tuple(hidden), f"equal multiples of {_HEADS} for transformer")
    return partial(_Transformer, outputs, hidden, shape[0])


def with_group_norm(make: Make) -> Callable[[], nn.Module]:
    """Returns a constructor of the module with group norm in place of batch norm.

    There are two groups, as in Reddi et al., "Adaptive Federated Optimization" (2021); or one, of
    an odd number of channels.
    """

    def build() -> nn.Module:
        module = copied(make) if isinstance(make, nn.Module) else make()
        # Anything else is refused by from_module.
        return _with(module, NORMS, _group_norm) if isinstance(module, nn.Module) else module

    return build


def _group_norm(norm: Any) -> nn.Module:
    width = norm.num_features
    found = nn.GroupNorm(1 if width % 2 else 2, width, norm.eps, norm.affine)
    if norm.affine:
        found.weight, found.bias = norm.weight, norm.bias
    return found


def _with(
    module: nn.Module, kinds: tuple[type[nn.Module], ...], other: Callable[[Any], nn.Module]
) -> nn.Module:
    for part in list(module.modules()):
        for name, child in part.named_children():
            if isinstance(child, kinds):
                setattr(part, name, other(child))
    return module


def _torchvision(name: str, outputs: int) -> Callable[[], nn.Module]:
    package = torchvision()
    known = name in package.models.list_models(module=package.models)
    expected = f"{TORCHVISION}NAME, of a classification network of torchvision's, such as resnet18"
    require(known, "model", TORCHVISION + name, expected)
    options = {"weights": None, "num_classes": outputs} | _OPTIONS.get(name, {})

    def build() -> nn.Module:
        made = package.models.get_model(name, **options)
        return _with(made, (package.ops.StochasticDepth,), lambda part: _RowDropout(part.p))

    return build


class _RowDropout(nn.Dropout):
    """Stochastic depth, row by row, that draws as dropout does; torchvision's draws elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return x * super().forward(x.new_ones(len(x), *[1] * (x.ndim - 1)))


# --- Adapters ------------------------------------------------------------------------------------


def with_adapters(make: Make, adapters: Adapters) -> Callable[[], nn.Module]:
    """Returns a constructor of a ``peft`` model with other adapters.

    Args:
        make: The model, which stays as it is, or what makes one.
        adapters: ``frozen-a``: A stays as it is drawn (FFA-LoRA; Sun et al., ICLR 2024). ``dual``:
            an adapter called "personal" is added to the active one, whose output it adds to, unless
            the model has one by this name (Yang et al., NeurIPS 2024, with fixed weights). Others
            change no model, only what is personal.

    Raises:
        ValueError: If the model has no such adapters, or two cannot be added up.
    """

    def build() -> nn.Module:
        module = copied(make) if isinstance(make, nn.Module) else make()
        found = lora_of(module)
        expected = f"a peft model with LoRA where adapters is {adapters}"
        require(bool(found), "model", type(module).__name__, expected)
        if adapters == "frozen-a":
            for name, leaf in module.named_parameters():
                leaf.requires_grad_(leaf.requires_grad and not any(a in name for a in _FIXED))
        if adapters == "dual":
            _add_personal(module)
        return module

    return build


def lora_of(module: Any) -> dict[str, Any]:
    """Returns the configurations of a ``peft`` model's active LoRA adapters, by name."""
    active = getattr(module, "active_adapters", None)  # a method, of models of transformers
    configs = {name: module.peft_config[name] for name in active} if type(active) is list else {}
    return {name: config for name, config in configs.items() if config.peft_type == "LORA"}


def _add_personal(module: Any) -> None:
    (first, config), *_ = lora_of(module).items()
    if _OWN not in module.peft_config:
        module.add_adapter(_OWN, copy.deepcopy(config))
    for each in (config, module.peft_config[_OWN]):
        plain = not (each.use_dora or each.use_rslora or each.modules_to_save)
        given = "one with use_dora, use_rslora, modules_to_save or bias"
        expected = "plain LoRA where adapters is dual"
        require(plain and each.bias == "none", "peft configuration", given, expected)
    module.base_model.set_adapter([first, _OWN])


# --- Images --------------------------------------------------------------------------------------


def _convolution(before: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    padding = size // 2
    convolution = nn.Conv2d(before, width, size, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


def _cnn_valid(shape: Sequence[int], widths: Sequence[int], outputs: int) -> nn.Module:
    channels, *sides = shape
    pixels = math.prod(((side - 4) // 2 - 4) // 2 for side in sides)
    layers: list[nn.Module] = []
    for size in pairwise([channels, 32, 64]):
        layers += [nn.Conv2d(*size, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for size in pairwise([64 * pixels, *widths]):
        layers += [nn.Linear(*size), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(before, width, 3, stride)
        self.second = _convolution(width, width, 3)
        same = before == width and stride == 1
        self.shortcut = nn.Identity() if same else _convolution(before, width, 1)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        # A 1x1 convolution with a stride is one of every second pixel. On processors with AVX2
        # alone its gradient, for fewer than 8 channels, writes past the end of its memory in oneDNN
        # 3.12, and the process dies.
        passed = self.shortcut(x[..., :: self.stride, :: self.stride])
        found: Tensor = self.second(self.first(x).relu()) + passed
        return found.relu()


def _resnet(channels: int, widths: Sequence[int], outputs: int) -> nn.Module:
    stages = [
        _Block(before, width, stride=2 if stage else 1)
        for stage, (before, width) in enumerate(pairwise([widths[0], *widths]))
    ]
    start = [_convolution(channels, widths[0], 3), nn.ReLU()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], outputs)]
    return nn.Sequential(*start, *stages, *end)


# --- Characters ----------------------------------------------------------------------------------


class _Lstm(nn.Module):
    def __init__(self, characters: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, _EMBEDDING)
        sizes = pairwise([_EMBEDDING, *widths])
        self.layers = nn.ModuleList(nn.LSTM(*size, batch_first=True) for size in sizes)
        self.head = nn.Linear(widths[-1], characters)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters)
        for layer in self.layers:
            x, _ = layer(x)
        found: Tensor = self.head(x)
        return found


class _Transformer(nn.Module):
    def __init__(self, characters: int, widths: Sequence[int], length: int) -> None:
        super().__init__()
        width = widths[0]
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Attending(width) for _ in widths)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters) + self.positions
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.norm(x))
        return found


class _Attending(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.mixed(self.before(x)).unflatten(-1, (3, _HEADS, -1))
        query, key, value = (part.transpose(-2, -3) for part in heads.unbind(-3))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(-2, -3).flatten(-2))
        found: Tensor = x + self.dense(self.between(x))
        return found


# --- Texts ---------------------------------------------------------------------------------------


def _classifying(inputs: int, widths: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in pairwise([inputs, *widths]):
        layers += [nn.Linear(*size), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([inputs, *widths][-1], outputs))


class _TextMean(nn.Module):
    def __init__(self, tokens: int, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, widths[0])
        self.head = _classifying(widths[0], widths[1:], outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens != PADDING).unsqueeze(-1)
        words = there.sum(-2).clamp(min=1)  # a text may be empty
        found: Tensor = self.head((self.embedding(tokens) * there).sum(-2) / words)
        return found


class _TextCnn(nn.Module):
    def __init__(self, tokens: int, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        width = widths[0]
        self.embedding = nn.Embedding(tokens, width)
        # Padding as wide as a window: one holds no word in any text, however long its padding is.
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, window, padding=window) for window in _WINDOWS
        )
        self.head = _classifying(len(_WINDOWS) * width, widths[1:], outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * (tokens != PADDING).unsqueeze(-1)
        maps = [each(x.transpose(-1, -2)).amax(-1).relu() for each in self.convolutions]
        found: Tensor = self.head(torch.cat(maps, -1))
        return found
