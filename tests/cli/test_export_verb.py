from __future__ import annotations

import json

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hf_recipes.cli.main import main


@pytest.fixture
def run(tmp_path, four_bit_model_dir, tokenizer):
    """A finished run with an adapter on the tiny model, and a recipe with an evaluation."""
    directory = tmp_path / "run"
    base = AutoModelForCausalLM.from_pretrained(four_bit_model_dir)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False))
    model.peft_config["default"].base_model_name_or_path = str(four_bit_model_dir)
    model.save_pretrained(directory / "adapter")
    tokenizer.save_pretrained(directory / "adapter")
    talk = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    evaluation = {"domain": str(tmp_path / "rows.jsonl"), "general": str(tmp_path / "rows.jsonl"), "max_new_tokens": 4}
    facts = {
        "schema": 1,
        "name": "tiny",
        "base_model": {"name_or_path": str(four_bit_model_dir), "revision": None},
        "recipe": {"evaluation": evaluation, "method": "lora"},
    }
    (directory / "run.json").write_text(json.dumps(facts))
    return directory


@pytest.mark.slow
def test_forms_are_written_loaded_back_and_told(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no llama.cpp
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    assert main(["export", str(run), "--forms", "adapter,merged-bf16,gguf:q8_0", "--no-measure"]) == 1
    captured = capsys.readouterr()
    assert "one form failed; the others are whole. gguf:q8_0: GGUF is written by llama.cpp's" in captured.err
    assert [line.split()[0] for line in captured.out.splitlines()[2:4]] == ["adapter", "merged-bf16"]
    rows = {row["name"]: row for row in json.loads((run / "export.json").read_text())["rows"]}
    assert rows["adapter"]["closeness"]["kl_mean"] < 1e-3
    assert rows["merged-bf16"]["closeness"]["same_answers"] == 4
    assert rows["merged-bf16"]["merge"]["dtype"] == "bf16"
    assert (run / "exports" / "merged-bf16" / "README.md").is_file()
    assert [path.name for path in sorted((run / "exports").iterdir())] == ["adapter", "merged-bf16"]


@pytest.mark.trials
def test_all_is_measured_side_by_side(run, capsys):
    assert main(["export", str(run), "--forms", "merged-fp32,bnb-4bit", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["base", "tuned (adapter)", "merged-fp32", "bnb-4bit"]
    assert all(row["general"]["tokens"] and row["ms_per_token"] and row["memory_bytes"] for row in rows)


def test_an_existing_form_is_refused_before_anything_is_written(run, capsys):
    (run / "exports" / "merged-bf16").mkdir(parents=True)
    assert main(["export", str(run), "--forms", "adapter,merged-bf16"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in (run / "exports").iterdir()] == ["merged-bf16"]
    assert not (run / "export.json").exists()


def test_wrong_use_is_2_and_one_sentence(run, tmp_path, capsys):
    cases = {
        (str(run), "--forms", "gguf:q4_km"): "did you mean 'q4_k_m'",
        (str(tmp_path / "gone"), "--forms", "adapter"): "does not exist",
        (str(run), "--forms", "adapter", "--public"): "give --push NAME",
        (str(run), "--forms", "adapter", "--samples", "0"): "not a positive whole number",
        (str(run), "--forms", "adapter", "--llama-cpp", str(tmp_path)): "holds no convert_hf_to_gguf.py",
        (str(run),): "--forms",
    }
    for arguments, sentence in cases.items():
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
    assert not (run / "exports").exists()


def test_what_measuring_reads_and_uploading_needs_is_asked_for_before_anything_is_written(run, capsys, monkeypatch):
    facts = json.loads((run / "run.json").read_text())
    gone = {**facts["recipe"]["evaluation"], "domain": str(run / "gone.jsonl")}
    for record, sentence in (
        ({**facts, "recipe": {"evaluation": gone}}, "gone.jsonl"),
        ({**facts, "base_model": None}, "names no base_model.name_or_path"),
        ([], "names no base_model.name_or_path"),
    ):
        (run / "run.json").write_text(json.dumps(record))
        assert main(["export", str(run), "--forms", "adapter"]) == 2
        assert sentence in capsys.readouterr().err
    (run / "run.json").write_text(json.dumps(facts))
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("HF_HOME", str(run / "no-hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(run / "no-token"))
    for name, sentence in (("noslash", "'noslash' is no name on the Hub"), ("me/tuned", "no Hub token")):
        assert main(["export", str(run), "--forms", "adapter", "--no-measure", "--push", name]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
    assert not (run / "exports").exists()


def test_where_no_form_was_written_nothing_is_measured(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no llama.cpp
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    assert main(["export", str(run), "--forms", "gguf:q8_0"]) == 1
    assert "convert_hf_to_gguf.py, which is not here" in capsys.readouterr().err
    assert [row["name"] for row in json.loads((run / "export.json").read_text())["rows"]] == ["gguf:q8_0"]
