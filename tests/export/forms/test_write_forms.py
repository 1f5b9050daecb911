from __future__ import annotations

import json
import os
import platform
import shutil
import sys

import pytest
import torch
from export_helpers import change_tensors, save_adapter, tensors_of
from safetensors.torch import save_file

from hf_recipes.export.forms.llama_cpp import LlamaCpp
from hf_recipes.export.forms.merged_form import write_merged_form
from hf_recipes.export.forms.names import parse_forms
from hf_recipes.export.forms.sources import Sources, temporary_place
from hf_recipes.export.forms.write import Order, write_forms


@pytest.fixture
def trained(tmp_path, four_bit_model_dir, tokenizer):
    """An adapter on a tiny model with a real tokenizer, and things of the training beside it."""
    adapter = save_adapter(tmp_path / "adapter", four_bit_model_dir, target_modules=["q_proj", "v_proj"])
    tokenizer.save_pretrained(adapter)
    (adapter / "training_args.bin").write_bytes(b"pickle")
    return adapter


@pytest.fixture
def order(trained, tmp_path):
    sources = Sources(
        tmp_path / "temporary", lambda to: write_merged_form(trained, to, "bf16"), LlamaCpp(None, None), "m"
    )
    (tmp_path / "temporary").mkdir()
    return Order(trained, sources, {})


def test_an_adapter_is_copied_with_its_tokenizer_and_nothing_of_the_training(order, trained, tmp_path):
    (made,) = write_forms(parse_forms("adapter"), tmp_path / "out", order)
    names = {file.name for file in made.path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert not names & {"training_args.bin", "README.md"}
    assert (made.path / "adapter_model.safetensors").read_bytes() == (
        trained / "adapter_model.safetensors"
    ).read_bytes()
    assert made.size_bytes == sum(file.stat().st_size for file in made.path.iterdir())
    assert "elsewhere it is not found" in made.notices[0]


def test_four_bits_load_by_transformers_alone_and_are_near(order, tmp_path):
    from transformers import AutoModelForCausalLM

    four, merged = write_forms(parse_forms("bnb-4bit,merged-bf16"), tmp_path / "out", order)
    assert four.error is None and merged.error is None
    assert not (tmp_path / "temporary" / "merged-bf16").exists()  # the form that was asked for is the source
    config = json.loads((four.path / "config.json").read_text())["quantization_config"]
    assert (config["bnb_4bit_quant_type"], config["bnb_4bit_use_double_quant"]) == ("nf4", True)
    assert config["bnb_4bit_compute_dtype"] == "bfloat16"
    ids = torch.arange(3, 40)[None]
    logits = [AutoModelForCausalLM.from_pretrained(form.path, dtype="bfloat16")(ids).logits for form in (four, merged)]
    assert (logits[0] - logits[1]).abs().mean() < 0.2 * logits[1].abs().mean()
    assert (merged.path / "Modelfile").read_text().splitlines()[1] == "FROM ."


def test_one_failure_does_not_lose_the_others(order, tmp_path):
    gguf, adapter = write_forms(parse_forms("gguf:q8_0,adapter"), tmp_path / "out", order)
    assert "pip install sentencepiece" in gguf.error
    assert not gguf.path.exists()
    assert not (tmp_path / "temporary" / "merged-bf16").exists()  # nothing is merged for a form that cannot be had
    assert adapter.error is None


def test_a_merge_that_fails_is_tried_once_for_all_forms(order, trained, tmp_path):
    change_tensors(trained, lambda tensors: [torch.zero_(t) for name, t in tensors.items() if "lora_B" in name])
    calls = []
    merge = order.sources.make_merged
    order.sources.make_merged = lambda to: (calls.append(to), merge(to))
    four, eight = write_forms(parse_forms("bnb-4bit,bnb-8bit"), tmp_path / "out", order)
    assert "changes nothing" in four.error and four.error == eight.error
    assert len(calls) == 1


def test_a_damaged_adapter_is_not_given_away(order, trained, tmp_path):
    change_tensors(trained, lambda tensors: [t.fill_(float("nan")) for name, t in tensors.items() if "lora_A" in name])
    (made,) = write_forms(parse_forms("adapter"), tmp_path / "out", order)
    assert made.error
    assert not made.path.exists()


def test_a_fully_trained_model_is_cast_and_has_no_adapter(order, four_bit_model_dir, tmp_path):
    order = Order(four_bit_model_dir, order.sources, {})
    merged, adapter = write_forms(parse_forms("merged-fp16,adapter"), tmp_path / "out", order)
    assert {tensor.dtype for tensor in tensors_of(merged.path).values()} == {torch.float16}
    assert json.loads((merged.path / "config.json").read_text())["dtype"] == "float16"
    assert (merged.path / "tokenizer.json").is_file()
    assert "no adapter to give away" in adapter.error


def test_values_beyond_fp16_are_refused_by_name(order, four_bit_model_dir, tmp_path):
    model = shutil.copytree(four_bit_model_dir, tmp_path / "model")
    tensors = tensors_of(model)
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], 1e5)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    half, other = write_forms(parse_forms("merged-fp16,merged-bf16"), tmp_path / "out", Order(model, order.sources, {}))
    assert half.error == (
        "'model.norm.weight' cannot be written: its values do not fit into float16; choose bf16 or fp32."
    )
    assert not half.path.exists()
    assert other.error is None


@pytest.mark.parametrize(("dtype", "outtype"), [("fp16", "f16"), ("bf16", "bf16")])
def test_other_forms_are_made_from_the_dtype_that_keeps_the_bases_values(tmp_path, dtype, outtype):
    """Whatever was named first; and a GGUF in 16 bits, from which others are quantised, is in the same."""
    tool = tmp_path / "convert_hf_to_gguf.py"
    tool.write_text("import sys; open(sys.argv[sys.argv.index('--outfile') + 1], 'w').write(' '.join(sys.argv[1:4]))")
    place = tmp_path / "temporary"
    sources = Sources(place, lambda to: to.mkdir(parents=True), LlamaCpp((sys.executable, str(tool)), None), "m", dtype)
    made = sources.merged()
    assert made == place / f"merged-{dtype}"
    assert sources.sixteen_bit_gguf().read_text() == f"{made} --outtype {outtype}"
    asked = {name: tmp_path / f"merged-{name}" for name in ("bf16", "fp16")}
    sources.written |= asked
    assert sources.merged() == asked[dtype]
    del sources.written[dtype]
    assert sources.merged() == next(iter(sources.written.values()))  # as good as any, and already there


def test_what_killed_exports_left_is_removed_and_what_others_use_is_not(tmp_path):
    mine = f".sources.{platform.node()}"
    dead, alive = tmp_path / f"{mine}.999999999.tmp", tmp_path / f"{mine}.{os.getppid()}.tmp"
    for place in (dead, alive):
        (place / "merged-bf16").mkdir(parents=True)
    with temporary_place(tmp_path) as place:
        assert place.is_dir()
        assert not dead.exists() and alive.exists()
    assert not place.exists()
    shutil.rmtree(alive)
