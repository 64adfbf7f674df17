"""Texts as tokens: words, characters, files of vocabularies, and the networks that take them."""

import json
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.testing import assert_close

from engram.core.standardization import Tokenizer, Units
from engram.data.tokenizers import LONGEST, encode, rows_with, split, tokenizer_from, vocabulary
from engram.networks.built_in import count_parameters, network
from tests.samples import entry

WORDS = Tokenizer("words", ("fever", "café", "no"))


def test_words_are_letters_and_digits_in_lower_case_and_nfc():
    found = [*split("No fever, 38.5 today: CAFE\u0301_x2!", "words")]
    assert found == ["no", "fever", "38", "5", "today", "café_x2"]
    assert [*split("", "words")] == [*split(" ... \n", "words")] == []
    assert [*split("E\u0301a", "characters")] == ["É", "a"]


def test_shorter_texts_are_padded_and_longer_ones_cut():
    texts = ["No fever", "", "?!", "cafe\u0301 NO no no", "fever " * 10**5]
    found = encode(texts, WORDS, 3)
    # Padding is 0, what the vocabulary lacks 1, and its words follow: fever 2, café 3, no 4.
    assert found.tolist() == [[4, 2, 0], [0, 0, 0], [0, 0, 0], [3, 4, 4], [2, 2, 2]]
    assert found.dtype == np.int64
    assert encode(["new fever"], WORDS, 3).tolist() == [[1, 2, 0]]
    assert encode(["aÉ"], Tokenizer("characters", ("É", "b")), 3).tolist() == [[1, 2, 0]]


def test_a_text_counts_once_for_each_word_that_its_network_sees():
    texts = ["a a b", "b a c", "d" * (LONGEST + 1)]
    assert rows_with(texts, "words", 2) == {"a": 2, "b": 1}
    assert rows_with(texts, "words", 9) == {"a": 2, "b": 2, "c": 1}
    assert vocabulary({"b": 2, "a": 2, "c": 3, "d": 1}, 3) == ("c", "a", "b")


def library(words):
    known = Library(WordLevel({word: k for k, word in enumerate(words)}, unk_token=words[0]))
    known.pre_tokenizer = Whitespace()
    known.enable_padding(length=50)
    known.enable_truncation(1)
    return known.to_str()


def test_a_tokenizer_of_the_library_gives_its_own_tokens_after_the_first_two():
    contents = library(["[UNK]", "no", "fever"])
    found = tokenizer_from(contents, 3, library=True)
    # Its own padding and lengths do not count.
    texts = ["no fever now", ""]
    assert encode(texts, found, 4).tolist() == [[3, 4, 2, 0], [0, 0, 0, 0]]
    assert Units.from_json(json.loads(json.dumps(Units(text=found).to_json()))).text == found


def test_a_vocabulary_is_one_word_a_line():
    found = tokenizer_from("Fever\ncafe\u0301\r\nno\nfever\n", 3, library=False)
    assert found == WORDS


def test_other_files_are_refused():
    for contents, whole, why in [
        (
            "a\nblood pressure\n",
            False,
            "line 2 of a vocabulary must be one word, got 'blood pressure'",
        ),
        ("a\n\nb", False, "line 2 of a vocabulary must be one word, got ''"),
        ("x" * (LONGEST + 1), False, "line 1 of a vocabulary"),
        ("", False, "tokens of a vocabulary must be at least 1, got 0"),
        ("a\nb\nc\nd", False, "vocabulary must be at least 4, .* got 3"),
        ("{}", True, "it is no tokenizer.json"),
        ("[" * 10**5, True, "it is no tokenizer.json"),
        (library(["a", "b", "c", "d"]), True, "vocabulary must be at least 4"),
    ]:
        with entry(why), pytest.raises(ValueError, match=why):
            tokenizer_from(contents, 3, library=whole)


def test_without_the_library_its_files_cannot_be_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'engram\[text\]'"):
        tokenizer_from(library(["a"]), 3, library=True)


# --- Networks ------------------------------------------------------------------------------------


TEXTS = torch.tensor([[2, 3, 4, 0, 0], [3, 0, 0, 0, 0]])


def built(name, hidden, example=TEXTS):
    how = {"outputs": 3, "hidden": hidden, "tokens": 7, "statistics": "average"}
    found = network(name, example, **how, generator=torch.Generator())
    return found, found.init(torch.Generator().manual_seed(0))


def test_padding_changes_nothing_and_a_text_may_be_empty():
    for name in ("text-mean", "text-cnn"):
        net, w = built(name, (6, 5))
        found = net.apply(w, TEXTS)
        assert found.shape == (2, 3)
        longer = torch.nn.functional.pad(TEXTS, (0, 9))
        assert_close(net.apply(w, longer), found)
        w["embedding.weight"] = w["embedding.weight"].clone()
        w["embedding.weight"][0] += 1
        assert_close(net.apply(w, TEXTS), found)
        assert net.apply(w, torch.zeros_like(TEXTS)).isfinite().all()
        assert net.vectorizes


def test_a_mean_of_embeddings_is_that_of_the_words_that_are_there():
    net, w = built("text-mean", (6,))
    mean = torch.stack([w["embedding.weight"][[2, 3, 4]].mean(0), w["embedding.weight"][3]])
    weight, bias = w["head.0.weight"], w["head.0.bias"]
    assert_close(net.apply(w, TEXTS), mean @ weight.T + bias)


def test_the_largest_value_of_each_convolution_is_found_wherever_its_words_are():
    net, w = built("text-cnn", (4,))
    late = torch.tensor([[0, 0, 2, 3, 4]])
    assert_close(net.apply(w, late), net.apply(w, TEXTS[:1]))
    assert not torch.allclose(net.apply(w, late.flip(1)), net.apply(w, late))


def test_parameters_of_networks_for_texts_are_counted_before_there_is_room():
    for name, hidden in (("text-mean", (6, 5)), ("text-cnn", (6, 5))):
        count = count_parameters(name, TEXTS, outputs=3, hidden=hidden, tokens=7)
        assert count == built(name, hidden)[0].parameters
    # 7 embeddings; windows of 3, 4 and 5 words; two dense layers.
    assert count == 7 * 6 + (3 + 4 + 5) * 36 + 18 + (18 + 1) * 5 + (5 + 1) * 3


def test_networks_for_texts_take_whole_numbers():
    with pytest.raises(ValueError, match="rows of tokens, as whole numbers"):
        built("text-mean", (6,), torch.rand(2, 5))
