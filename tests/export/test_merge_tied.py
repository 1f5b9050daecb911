"""Tied embeddings and heads. PEFT's own merge is wrong here, so what is held up is the live adapter's logits.

What the live adapter computes, and so what merged embedding E and head H must be, from the base's shared W:
LoRA or a trained copy on one of the two leaves the other at W; trained token rows go to both; a pair saved with
`ensure_weight_tying` is the same on both, once.
"""

from __future__ import annotations

import pytest
import torch
from export_helpers import (
    WORDS,
    change_tensors,
    live_logits,
    make_gpt2,
    merged_logits,
    peft_merge,
    read,
    save_adapter,
    save_base,
    tensors_of,
)

from hf_recipes.core.errors import UserError
from hf_recipes.export.merge import merge_adapter

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Case → (LoRA settings, whether embedding and head part).
CASES = {
    "lora on embedding": ({"target_modules": ["embed_tokens", "q_proj"]}, True),
    "lora on head": ({"target_modules": ["lm_head", "q_proj"]}, True),
    "lora on both": ({"target_modules": ["embed_tokens", "lm_head"]}, True),
    "lora on both, tied": ({"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}, False),
    "dora on embedding": ({"target_modules": ["embed_tokens"], "use_dora": True}, True),
    "copy of embedding": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, True),
    "copy of head": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, True),
    "copies of both": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}, True),
    "copy, tied": (
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        False,
    ),
    "token rows": ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 5]}, False),
    "nothing on either": ({"target_modules": ["q_proj"]}, False),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("tied") / "base", tied=True)


@pytest.mark.parametrize("case", CASES)
def test_m2_m5_tied_weights_merge_to_what_the_live_adapter_computes(tmp_path, base, case):
    settings, parts = CASES[case]
    adapter = save_adapter(tmp_path / "adapter", base, **settings)
    report = merge_adapter(adapter, output=tmp_path / "merged", dtype="fp32")
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), live_logits(base, adapter), rtol=0, atol=2e-5)
    assert report.untied == parts
    assert read(tmp_path / "merged" / "config.json")["tie_word_embeddings"] is not parts
    assert (HEAD in tensors_of(tmp_path / "merged")) == parts


def test_m5_peft_itself_collapses_both_into_one(tmp_path, base):
    """Why PEFT cannot be the golden value here; when this fails, PEFT has been mended and the note can go."""
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["embed_tokens"])
    golden = peft_merge(base, adapter)
    assert torch.equal(golden[EMBED], golden[HEAD])
    merge_adapter(adapter, output=tmp_path / "merged", dtype="fp32")
    ours, stored = tensors_of(tmp_path / "merged"), tensors_of(base)
    assert torch.equal(ours[HEAD], stored[EMBED])
    assert not torch.equal(ours[EMBED], stored[EMBED])


@pytest.mark.parametrize("target", ["wte", "lm_head"])
def test_m2_m5_a_tied_gpt2(tmp_path, target):
    base = save_base(tmp_path / "base", make_gpt2())
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["c_attn", target])
    merge_adapter(adapter, output=tmp_path / "merged", dtype="fp32")
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), live_logits(base, adapter), rtol=0, atol=2e-5)


EXTENDED = {
    "untied": (False, {}),
    "tied": (True, {}),
    "tied, embedding trained": (True, {"modules_to_save": ["embed_tokens"]}),
    "tied, both trained": (True, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "untied, both trained": (False, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "tied, token rows": (True, {"trainable_token_indices": [WORDS, WORDS + 3]}),
    "tied, lora on embedding": (True, {"target_modules": ["embed_tokens", "q_proj"]}),
}


@pytest.mark.parametrize("case", EXTENDED)
def test_m4_an_extended_vocabulary_comes_from_the_adapter(tmp_path, case):
    tied, settings = EXTENDED[case]
    base = save_base(tmp_path / "base", tied=tied)
    adapter = save_adapter(tmp_path / "adapter", base, resize=WORDS + 6, **{"target_modules": ["q_proj"], **settings})
    report = merge_adapter(adapter, output=tmp_path / "merged", dtype="fp32")
    assert report.vocab_size == read(tmp_path / "merged" / "config.json")["vocab_size"] == WORDS + 6
    live = live_logits(base, adapter, rows=WORDS + 6)
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), live, rtol=0, atol=2e-5)


def test_m4_a_vocabulary_extended_on_one_side_only_is_refused(tmp_path):
    base = save_base(tmp_path / "base", tied=False)
    adapter = save_adapter(tmp_path / "adapter", base, resize=WORDS + 6, target_modules=["q_proj"])
    change_tensors(adapter, lambda tensors: tensors.pop("base_model.model.lm_head.weight"))
    with pytest.raises(UserError, match=rf"{WORDS + 6} rows .*'lm_head.weight' has {WORDS}"):
        merge_adapter(adapter, output=tmp_path / "merged", dtype="fp32")
    assert not (tmp_path / "merged").exists()
