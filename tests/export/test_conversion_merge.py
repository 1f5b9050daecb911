"""Bases whose checkpoint has other names, or another layout, than transformers gives the parameters in memory."""

from __future__ import annotations

import pytest
import torch
from export_helpers import live_logits, merged_logits, save_base, tensors_of
from mixtures import COMMON, make_mixture, save_lora, save_peft_merge
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import Concatenate, WeightConverter

from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.conversion import Fusion, NotReversible, read_conversions
from hf_recipes.export.merge import merge_adapter


def make_dense(kind, **settings):
    torch.manual_seed(0)
    common = {name: value for name, value in COMMON.items() if name != "num_experts_per_tok"}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**common, **settings}))


def merged_as_peft(base, tmp_path, **lora):
    """The merge holds PEFT's bits under the base's own names; returns the names of what changed."""
    adapter = save_lora(tmp_path / "adapter", base, **lora)
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    written, before = tensors_of(tmp_path / "out"), tensors_of(base)
    golden = tensors_of(save_peft_merge(tmp_path / "golden", base, adapter))
    assert set(written) == set(before) == set(golden)
    assert [name for name in golden if not torch.equal(written[name], golden[name])] == []
    return {name for name in before if not torch.equal(written[name], before[name])}


def test_a_dense_base_under_older_names(tmp_path):
    base = save_base(tmp_path / "base", make_dense("exaone"))
    assert "transformer.h.0.attn.attention.out_proj.weight" in tensors_of(base)
    targets = ["o_proj", "gate_proj", "embed_tokens"]
    changed = merged_as_peft(base, tmp_path, target_modules=targets, modules_to_save=["lm_head"], bias="none")
    layers = {f"transformer.h.{n}.{part}.weight" for n in (0, 1) for part in ("attn.attention.out_proj", "mlp.c_fc_0")}
    assert changed == {"transformer.wte.weight", "lm_head.weight", *layers}


def test_tied_words_under_older_names_go_apart(tmp_path):
    """LoRA on the embedding alone: the head keeps the base's words, so both are written."""
    base = save_base(tmp_path / "base", make_dense("exaone", tie_word_embeddings=True))
    assert "lm_head.weight" not in tensors_of(base)
    adapter = save_lora(tmp_path / "adapter", base, target_modules=["embed_tokens"])
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert report.untied
    torch.testing.assert_close(merged_logits(tmp_path / "out"), live_logits(base, adapter), atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}], ids=str)
def test_layers_that_the_checkpoint_keeps_in_one_tensor(settings, tmp_path):
    """Query, key, value and gate are a quarter each of one tensor; two of them are trained."""
    base = save_base(tmp_path / "base", make_dense("hrm_text"))
    changed = merged_as_peft(base, tmp_path, target_modules=["q_proj", "v_proj"], **settings)
    assert changed == {name for name in tensors_of(base) if "gqkv_proj" in name}
    name = sorted(changed)[0]
    quarters = (tensors_of(tmp_path / "out")[name] != tensors_of(base)[name]).chunk(4)
    assert [bool(quarter.any()) for quarter in quarters] == [False, True, False, True]  # gate, query, key, value


def test_attention_router_and_head_of_a_mixture(tmp_path):
    base = save_base(tmp_path / "base", make_mixture())
    changed = merged_as_peft(base, tmp_path, target_modules=["q_proj"], modules_to_save=["gate", "lm_head"])
    parts = ("self_attn.q_proj", "block_sparse_moe.gate")
    assert changed == {"lm_head.weight", *(f"model.layers.{n}.{part}.weight" for n in (0, 1) for part in parts)}


def test_an_adapter_with_the_checkpoints_own_older_names_is_merged_as_it_is(tmp_path):
    """As transformers 4 saved it: LoRA on single experts, and a router under its former name."""
    base = save_base(tmp_path / "base", make_mixture())
    new = save_lora(tmp_path / "adapter", base, target_modules=["q_proj"], modules_to_save=["gate"])
    file = new / "adapter_model.safetensors"
    tensors = {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in load_file(file).items()}
    torch.manual_seed(2)
    expert = "base_model.model.model.layers.1.block_sparse_moe.experts.3.w2"
    a, b = torch.randn(2, 48), torch.randn(32, 2)
    tensors |= {f"{expert}.lora_A.weight": a, f"{expert}.lora_B.weight": b}
    save_file(tensors, file, metadata={"format": "pt"})
    merge_adapter(new, output=tmp_path / "out", dtype="fp32")
    written, before = tensors_of(tmp_path / "out"), tensors_of(base)
    name = expert.removeprefix("base_model.model.") + ".weight"
    torch.testing.assert_close(written[name], before[name] + 4 * (b @ a))  # alpha 8 / rank 2
    gate = "model.layers.0.block_sparse_moe.gate.weight"
    assert torch.equal(written[gate], tensors[f"base_model.model.{gate}"])


def test_the_names_of_another_model_are_still_refused(tmp_path):
    base = save_base(tmp_path / "base", make_mixture())
    adapter = save_lora(tmp_path / "adapter", base, target_modules=["q_proj"], modules_to_save=["gate"])
    other = save_base(tmp_path / "other")
    with pytest.raises(UserError, match=r"2 of 6 adapter tensors have no counterpart.*mlp\.gate\.weight"):
        merge_adapter(adapter, base=other, output=tmp_path / "out", dtype="fp32")


def test_a_conversion_that_cannot_be_undone_is_told_before_anything_is_written(tmp_path):
    """Joined from parts of unequal height, which `Chunk`, the way back, cannot know."""
    base = read_base(save_base(tmp_path / "base", make_mixture()))
    model = read_conversions(base).model
    parts = ["self_attn.q_proj.weight", "self_attn.k_proj.weight"]
    converter = WeightConverter(list(parts), "self_attn.qk_proj.weight", [Concatenate(dim=0)])
    model._weight_conversions = [converter]
    sources = {f"model.layers.0.{part}": base.tensors[f"model.layers.0.{part}"] for part in parts}
    assert [source.shape for source in sources.values()] == [(32, 32), (16, 32)]
    fusion = Fusion(
        model, "model.layers.0.self_attn.qk_proj.weight", sources, dict(zip(sources, parts, strict=True)), converter
    )
    joined = fusion.forward({name: source.load() for name, source in sources.items()})
    assert joined["model.layers.0.self_attn.qk_proj.weight"].shape == (48, 32)
    with pytest.raises(NotReversible, match="cannot undo"):
        fusion.parameters()
