"""Plug-in of ``speakers.toml``: drawn speakers, and a small GPT-2 with low-rank adapters."""

import numpy as np
import numpy.typing as npt
from torch import nn

import engram
from engram.networks.vision import torchvision

torchvision()  # which transformers imports, and peft that
from peft import LoraConfig, get_peft_model  # noqa: E402 - after torchvision, as above
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402 - likewise

_LETTERS, _WORDS, _ROWS, _LENGTH = 27, 20, 100, 16


@engram.data
def speakers(client: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns a speaker's letters, (100, 16), and the one that follows each; 0 is a blank.

    All speakers spell the same words, and each draws for itself which of them follow which.
    """
    common, own = np.random.default_rng(0), np.random.default_rng([1, client])
    words = [[*common.integers(1, _LETTERS, common.integers(2, 6)), 0] for _ in range(_WORDS)]
    follows = own.dirichlet(np.full(_WORDS, 0.1), _WORDS)
    spoken, word = [0], 0
    while len(spoken) <= _ROWS * _LENGTH:
        spoken += words[word]
        word = own.choice(_WORDS, p=follows[word])
    rows = np.lib.stride_tricks.sliding_window_view(spoken, _LENGTH + 1)[::_LENGTH][:_ROWS]
    return rows[:, :-1], rows[:, 1:]


@engram.model
def gpt2_with_lora() -> nn.Module:
    """Returns a GPT-2 of frozen random weights, with adapters on its layers and its head."""
    config = GPT2Config(  # type: ignore[call-arg]  # its class does not name all
        vocab_size=_LETTERS,
        n_positions=_LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
        attn_implementation="eager",  # with which all clients train at once
    )
    layers = ["c_attn", "c_proj", "c_fc", "lm_head"]
    return get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=8, target_modules=layers))
