from __future__ import annotations

import copy
import logging

import pytest
from tiny_models import make_tiny_llama

from hf_recipes.core.errors import UserError
from hf_recipes.models.soundness import check_vocabulary, soundness_notes, soundness_warnings, tell_soundness


@pytest.fixture
def other(tokenizer):
    """A tokenizer to change."""
    return copy.deepcopy(tokenizer)


def test_vocabulary_rows_ties_and_padding_are_told(tokenizer, caplog):
    with caplog.at_level(logging.INFO):
        tell_soundness(make_tiny_llama(len(tokenizer) + 8), tokenizer, 256)
    tokens, rows = len(tokenizer), len(tokenizer) + 8
    assert f"{tokens} tokens, {rows} embedding rows; embedding and output head are tied" in caplog.text
    assert "Padding with the end token '<|im_end|>': padding is masked by position" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_heads_apart_and_a_pad_token_of_its_own(other):
    other.pad_token = "<|endoftext|>"
    notes = soundness_notes(make_tiny_llama(len(other), tied=False), other)
    assert len(notes) == 1 and "are not tied" in notes[0]


def test_weights_tied_otherwise_than_declared_are_a_warning(tokenizer):
    model = make_tiny_llama(len(tokenizer), tied=False)
    assert soundness_warnings(model, tokenizer) == []
    model.config.tie_word_embeddings = True
    (warning,) = soundness_warnings(model, tokenizer)
    assert "says that embedding and output head are tied, but they are two tensors" in warning


def test_rows_beyond_the_models_positions_are_a_warning(tiny_model, tokenizer):
    assert soundness_warnings(tiny_model, tokenizer, 256) == []
    (warning,) = soundness_warnings(tiny_model, tokenizer, 257)
    assert "Rows of 257 tokens go beyond the 256 positions" in warning


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ raise_exception('roles must alternate') }}", "fails on one question and answer (roles must alternate)"),
        ("{{ messages[0]['content'] }}", "leaves out the answer of a conversation"),
        ("fixed", "leaves out the question and the answer"),
    ],
)
def test_a_template_that_does_not_render_a_conversation_is_a_warning(tiny_model, other, template, fault):
    other.chat_template = template
    (warning,) = soundness_warnings(tiny_model, other)
    assert fault in warning


def test_a_missing_template_is_told_and_not_warned_of(tiny_model, other):
    other.chat_template = None
    assert soundness_warnings(tiny_model, other) == []
    assert "no chat template" in soundness_notes(tiny_model, other)[-1]


def test_a_token_id_past_the_last_row_is_refused_though_the_counts_agree():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({"pens": 0, "<eos>": 600}, unk_token="<eos>"))  # ids need not be dense
    sparse = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>")
    with pytest.raises(
        UserError, match=r"has 2 tokens, the model's embedding only 512 rows \(the last token's id is 600"
    ):
        check_vocabulary(make_tiny_llama(512), sparse)
