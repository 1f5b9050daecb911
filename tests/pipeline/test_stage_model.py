"""Stages in one process, one after the other: what they compute is what the whole model computes."""

from __future__ import annotations

import shutil

import pytest
import torch
from decoders import KINDS, config_of, make_decoder
from tiny_models import make_tiny_llama
from transformers import AutoConfig

from hf_recipes.core.errors import UserError
from hf_recipes.pipeline.cut import cut_layers
from hf_recipes.pipeline.stage import Stage
from hf_recipes.pipeline.stage_model import drop_others, fill_part, layer_sizes, reserve_part, skeleton
from hf_recipes.pipeline.support import check_decoder, check_shards
from hf_recipes.training.loss import supervised_cross_entropy


@pytest.fixture(scope="module", params=["llama", *KINDS])
def saved(request, tmp_path_factory):
    """A model on disk and in memory."""
    model = make_decoder(request.param, num_hidden_layers=5)
    for parameter in model.parameters():  # biases and norms too
        torch.nn.init.normal_(parameter, std=0.3)
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    return directory, model.eval()


def stages_of(directory, count):
    config = AutoConfig.from_pretrained(directory)
    for part in cut_layers(config.num_hidden_layers, count):
        model = skeleton(config, torch.float32)
        reserve_part(model, part)
        drop_others(model, part)
        fill_part(model, directory)
        yield Stage(model, part, torch.float32, None, supervised_cross_entropy)


@pytest.mark.parametrize("saved", ["llama"], indirect=True)
def test_a_damaged_file_is_told_in_one_sentence(saved, tmp_path):
    directory = tmp_path / "cut"
    shutil.copytree(saved[0], directory)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"model\.safetensors: .*: fetch the model, or take the checkpoint, once more"):
        list(stages_of(directory, 2))


def test_stages_in_a_row_give_loss_and_gradients_of_the_whole_model(saved):
    directory, whole = saved
    ids = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :4] = -100
    whole.zero_grad()
    whole(input_ids=ids, labels=labels).loss.backward()
    stages = list(stages_of(directory, 3))
    hidden = ids
    for stage in stages:
        hidden = stage(hidden)
    loss = stages[-1].summed_loss(hidden, labels) / (labels[:, 1:] != -100).sum()
    assert loss.item() == pytest.approx(whole(input_ids=ids, labels=labels).loss.item(), abs=1e-5)
    loss.backward()
    found = {}
    for stage in stages:
        for name, parameter in stage.model.named_parameters():
            found[name] = parameter.grad
    for name, parameter in whole.named_parameters():
        gradient = found.pop(name)
        if whole.config.tie_word_embeddings and name == "model.embed_tokens.weight":
            gradient = gradient + found.pop("lm_head.weight")
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-4)
    assert not found


def test_a_stage_holds_its_own_tensors_only(saved):
    directory, whole = saved
    first, middle, last = (set(dict(stage.model.named_parameters())) for stage in stages_of(directory, 3))
    assert middle and all(name.startswith("model.layers.") for name in middle)
    assert "model.embed_tokens.weight" in first - last
    assert {"model.norm.weight", "lm_head.weight"} <= last - first
    held = [name for names in (first, middle, last) for name in names if ".layers." in name]
    assert sorted(held) == sorted(name for name, _ in whole.named_parameters() if ".layers." in name)


def test_sizes_are_in_layers():
    # hidden 32, heads 4 of 8, 2 of keys, MLP 64: 32·32·2 + 32·16·2 + 3·32·64 + 2·32 = 9,280; embedding 512·32, head
    # and norm 512·32 + 32.
    embedding, head = layer_sizes(make_tiny_llama(512, tied=False))
    assert (embedding, head) == pytest.approx((512 * 32 / 9280, (512 * 32 + 32) / 9280))


def test_a_file_that_lacks_a_tensor_is_told(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    directory, _ = saved
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    with pytest.raises(UserError, match=r"does not hold 'model\.norm\.weight'"):
        list(stages_of(tmp_path, 2))


def test_other_models_are_refused():
    check_decoder(config_of("llama"))
    with pytest.raises(UserError, match="of type 'gemma2': take fsdp or zero3"):
        check_decoder(config_of("gemma2"))
    with pytest.raises(UserError, match="unquantised"):
        check_decoder(config_of("llama", quantization_config={"quant_method": "gptq"}))


def test_shards_must_divide_the_heads():
    check_shards(config_of("qwen3"), 2)
    with pytest.raises(UserError, match="4 does not divide the model's num_key_value_heads, 2"):
        check_shards(config_of("qwen3"), 4)
