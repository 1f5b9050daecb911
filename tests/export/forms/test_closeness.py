from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_models import make_tiny_llama

from hf_recipes.export.forms.closeness import compare_with, divergence, is_too_far, write_reference
from hf_recipes.export.forms.names import Form


def test_divergence_of_two_known_distributions():
    # p = (3/4, 1/4), q = (1/4, 3/4): KL = 3/4 ln 3 - 1/4 ln 3 = ln(3) / 2; the second row is the same on both sides.
    p = np.log(np.array([[0.75, 0.25], [0.5, 0.5]], dtype=np.float32))
    q = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], dtype=np.float32))
    kl, same = divergence(p, q)
    np.testing.assert_allclose(kl, [math.log(3) / 2, 0.0], atol=1e-6)
    assert same.tolist() == [0.0, 1.0]


def test_a_filled_up_vocabulary_is_compared_where_both_have_words():
    p = np.zeros((1, 3), dtype=np.float32)
    kl, _ = divergence(p, np.concatenate([p, np.full((1, 2), 50.0, dtype=np.float32)], axis=1))
    assert kl.tolist() == [0.0]


@pytest.fixture
def reference(tiny_model, tokenizer, tmp_path):
    write_reference(tmp_path / "reference.npz", tiny_model.eval(), tokenizer)
    return tmp_path / "reference.npz"


def test_a_model_is_itself(reference, tiny_model, tokenizer):
    near = compare_with(reference, tiny_model.eval(), tokenizer)
    assert (near.kl_mean, near.same_top) == (0.0, 1.0)
    assert near.same_answers == near.answers == 4


def test_a_misplaced_matrix_is_seen(tokenizer, tmp_path):
    model = make_tiny_llama(len(tokenizer), tied=False).eval()
    head = model.lm_head.weight
    with torch.no_grad():
        head.mul_(30)
        write_reference(tmp_path / "sharp.npz", model, tokenizer)
        head.copy_(head.flip(0))
    near = compare_with(tmp_path / "sharp.npz", model, tokenizer)
    assert near.kl_mean > 1
    assert near.same_top < 0.5
    assert near.same_answers == 0
    assert "not the merged model" in is_too_far(Form("gguf", "q8_0"), near.to_dict())


def test_fewer_bits_may_be_further_away():
    far = {"kl_mean": 0.5}
    assert is_too_far(Form("gguf", "q8_0"), far)
    assert is_too_far(Form("bnb", "8bit"), far)
    assert is_too_far(Form("merged", "bf16"), far)
    assert is_too_far(Form("bnb", "4bit"), far) is None
    assert is_too_far(Form("gguf", "q4_k_m"), far) is None
    assert is_too_far(Form("gguf", "q2_k"), {"kl_mean": 1.5}) is None
    assert is_too_far(Form("gguf", "q2_k"), None) is None


def test_the_reference_is_of_the_model_that_wrote_it(reference, tokenizer):
    other = make_tiny_llama(len(tokenizer), seed=1).eval()
    assert compare_with(reference, other, tokenizer).kl_mean > 0.0
