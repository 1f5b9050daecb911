"""Damaged, foreign and hostile files: each is told in one sentence, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import torch
from export_helpers import change_json, change_tensors, make_gpt2, peft_merge, save_adapter, save_base, tensors_of
from safetensors.torch import load_file, save_file

from hf_recipes.cli.main import main
from hf_recipes.cli.merge import ended_by_signals
from hf_recipes.core.errors import UserError
from hf_recipes.export.staging import staged

NO_MAP = ["[]", "null", "3", '"x"', "[" * 100_000]


@pytest.fixture
def run(tmp_path, adapter):
    shutil.copytree(adapter, tmp_path / "run" / "adapter")
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def refused(capsys, what, output, *options) -> str:
    """The one sentence of a merge that is wrong use and leaves nothing."""
    before = sorted(output.parent.iterdir())
    assert main(["merge", str(what), "--to", "bf16", "--output", str(output), *options]) == 2
    assert sorted(output.parent.iterdir()) == before
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("hf-recipes: ")
    return sentence


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank_pattern", ["x"]),
        ("alpha_pattern", {"q_proj": "4"}),
        ("alpha_pattern", {"(": 4}),
        ("modules_to_save", "lm_head"),
        ("target_parameters", 1.5),
        ("trainable_token_indices", {"embed_tokens": ["1"]}),
        ("task_type", ["CAUSAL_LM"]),
        ("lora_alpha", float("inf")),
        ("revision", 3),
    ],
)
def test_an_adapter_config_of_other_kinds_of_values_is_named(tmp_path, adapter, capsys, key, value):
    change_json(adapter / "adapter_config.json", **{key: value})
    sentence = refused(capsys, adapter, tmp_path / "out")
    assert f"'{key}' is {value!r}, not a" in sentence


@pytest.mark.parametrize("text", NO_MAP)
@pytest.mark.parametrize(
    "file", ["base/config.json", "base/generation_config.json", "run/run.json", "base/model.safetensors.index.json"]
)
def test_json_that_is_no_map_is_named(tmp_path, run, capsys, file, text):
    (tmp_path / file).write_text(text)
    assert file.rpartition("/")[0] in refused(capsys, run, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("base/config.json", {"text_config": 3}),
        ("base/config.json", {"vocab_size": "x"}),
        ("base/generation_config.json", {"eos_token_id": {"a": 1}}),
        ("run/run.json", {"base_model": "x"}),
        ("run/run.json", {"precision": {"dtype": ["bf16"]}}),
        ("run/run.json", {"end_of_turn_token_ids": ["x"]}),
        ("run/run.json", {"recipe": {"bnb_4bit_quant_type": "x"}}),
    ],
)
def test_values_of_another_kind_are_named(tmp_path, run, capsys, file, content):
    change_json(tmp_path / file, **content)
    sentence = refused(capsys, run, tmp_path / "out")
    assert next(iter(content)) in sentence
    assert ", not " in sentence


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}, {"a": ["x"]}])
def test_an_index_that_is_none_is_named(tmp_path, adapter, base, capsys, weight_map):
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "is not a map of tensors to files" in refused(capsys, adapter, tmp_path / "out")


@pytest.mark.parametrize("kind", ["twice", "lacking"])
def test_an_index_and_files_that_do_not_agree_are_damage(tmp_path, adapter, base, capsys, kind):
    tensors = tensors_of(base)
    names = sorted(tensors)
    half = {name: tensors[name] for name in names[:10]}
    rest = {name: tensors[name] for name in names[10 if kind == "lacking" else 9 :]}
    lacking = rest.popitem()[0] if kind == "lacking" else None
    (base / "model.safetensors").unlink()
    for file, part in (("a.safetensors", half), ("b.safetensors", rest)):
        save_file(part, base / file, metadata={"format": "pt"})
    weight_map = {name: "a.safetensors" if name in half else "b.safetensors" for name in names}
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    sentence = refused(capsys, adapter, tmp_path / "out")
    assert (f"('{lacking}')" if lacking else f"'{names[9]}' is in a.safetensors and in b.safetensors") in sentence


def test_a_damaged_record_is_told_by_the_proof_by_logits_too(tmp_path, run, capsys):
    (run / "run.json").write_text("[]")
    assert "run.json is not a JSON object" in refused(capsys, run, tmp_path / "out", "--proof", "logits")


def test_what_no_dtype_holds_is_not_sent_to_another(tmp_path, adapter, capsys):
    change_tensors(adapter, lambda tensors: [tensor.fill_(3e38) for tensor in tensors.values()])
    assert "do not fit into bfloat16; check how the adapter" in refused(capsys, adapter, tmp_path / "out")


def test_a_tokenizer_of_odd_json_is_copied_as_it_is(tmp_path, adapter):
    (adapter / "tokenizer_config.json").write_text('{"eos_token": 1}')
    (adapter / "tokenizer.json").write_text('{"added_tokens": [1, {"content": 1}]}')
    assert main(["merge", str(adapter), "--to", "bf16", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"added_tokens": [1, {"content": 1}]}'
    assert load_file(tmp_path / "out" / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_an_adapter_of_no_floats_is_refused(tmp_path, adapter, capsys, dtype):
    change_tensors(adapter, lambda tensors: tensors.update({k: t.to(dtype) for k, t in tensors.items()}))
    assert "8 of 8 tensors of the adapter" in refused(capsys, adapter, tmp_path / "out")


def test_rows_of_no_dimension_are_refused(tmp_path, adapter, capsys):
    name = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    change_tensors(adapter, lambda tensors: tensors.update({name: torch.ones(())}))
    assert "has 0 rows" in refused(capsys, adapter, tmp_path / "out")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_layout_that_the_layers_do_not_have_is_not_believed(tmp_path, kind):
    """A square weight fits both ways; PEFT goes by the layer, whatever another program wrote into the config."""
    base = save_base(tmp_path / "square", make_gpt2() if kind == "gpt2" else None)
    adapter = save_adapter(tmp_path / "its", base, target_modules=r".*attn\.c_proj" if kind == "gpt2" else ["q_proj"])
    change_json(adapter / "adapter_config.json", fan_in_fan_out=kind == "llama")
    assert main(["merge", str(adapter), "--to", "fp32", "--output", str(tmp_path / "out")]) == 0
    wanted = peft_merge(base, adapter)
    for name, tensor in tensors_of(tmp_path / "out").items():
        assert torch.equal(tensor, wanted[name]), name


def test_updates_that_the_config_does_not_name_are_told(tmp_path, adapter, capsys):
    change_json(adapter / "adapter_config.json", target_modules=["v_proj"])
    assert main(["merge", str(adapter), "--to", "bf16", "--output", str(tmp_path / "out")]) == 0
    assert "2 modules that its adapter_config.json (target_modules) does not name" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda:99", "mps", "meta", "x", "cpu:1"])
def test_a_device_that_is_not_there_is_told(tmp_path, adapter, capsys, device):
    assert f"--device: '{device}' is" in refused(capsys, adapter, tmp_path / "out", "--device", device)


@pytest.mark.parametrize("flag", ["--base", "--output", "--max-shard-size"])
def test_an_empty_value_is_not_the_default(adapter, tmp_path, capsys, flag):
    assert f"{flag} is empty" in refused(capsys, adapter, tmp_path / "out", f"{flag}=")


def test_an_output_that_another_made_meanwhile_stays(tmp_path):
    with pytest.raises(UserError, match="by another process meanwhile"), staged(tmp_path / "out"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "theirs").is_file()


def test_a_polite_end_leaves_nothing(tmp_path):
    with pytest.raises(SystemExit) as ended, ended_by_signals(), staged(tmp_path / "out"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
