"""`hf-recipes plan` from the command line."""

from __future__ import annotations

import json

import pytest
import yaml

from hf_recipes.cli.main import main
from hf_recipes.plan.memory.overhead import workspace_bytes

LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LLAMA_13B = {
    **LLAMA_7B,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
}


@pytest.fixture
def model(tmp_path):
    """Writes a config.json, which is all that planning needs of a model."""

    def write(config):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model/config.json").write_text(json.dumps(config))
        return str(tmp_path / "model")

    return write


def plan(capsys, *arguments):
    code = main(["plan", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def plan_json(capsys, *arguments):
    code, out, _ = plan(capsys, *arguments, "--json")
    return code, json.loads(out)


@pytest.mark.parametrize(
    ("recipe", "config", "gpu"),
    [("llama2/13b_qlora", LLAMA_13B, "rtx-4090"), ("qwen2.5/7b_qlora", LLAMA_7B, "rtx-4080")],
    ids=["13B on 24 GB", "7B on 16 GB"],
)
def test_shipped_recipes_fit_the_cards_they_are_for(model, capsys, recipe, config, gpu):
    code, found = plan_json(
        capsys, "--config", recipe, "--model_name_or_path", model(config), "--gpu", gpu, "--tokens", "1e6"
    )
    assert code == 0
    (device,) = found["devices"]
    assert device["fits"]
    assert device["chosen"]["memory"]["device_bytes"] < device["accelerator"]["memory_bytes"]
    assert device["chosen"]["settings"]["quantization"] == "nf4"


def test_what_fits_nowhere_exits_1_and_says_what_to_change(model, capsys):
    keys = ("--model_name_or_path", model(LLAMA_7B), "--method", "full", "--gpu", "rtx-4090", "--host-memory", "32GiB")
    code, out, err = plan(capsys, *keys)
    assert code == 1
    assert "fits on none" in err
    assert "needs" in out
    assert "method: lora" in out


def test_several_devices_stand_side_by_side_with_hours_and_cost(model, capsys):
    keys = ("--model_name_or_path", model(LLAMA_7B), "--method", "lora", "--tokens", "1e7")
    code, found = plan_json(capsys, *keys, "--gpu", "h100,a100-80g,l4", "--price", "2.5")
    assert code == 0
    hours = {each["accelerator"]["key"]: each["time"]["hours"]["expected"] for each in found["devices"] if each["time"]}
    assert min(hours, key=hours.get).startswith("h100")
    for each in found["devices"]:
        if each["cost"]:
            assert each["cost"]["usd"]["expected"] == pytest.approx(2.5 * each["time"]["hours"]["expected"])


def test_write_leaves_what_a_run_is_started_with(model, capsys, tmp_path):
    keys = ("--model_name_or_path", model(LLAMA_7B), "--method", "full", "--per_device_train_batch_size", "64")
    code, out, _ = plan(
        capsys, *keys, "--gpu", "h100", "--gpus", "8", "--tokens", "1e7", "--write", str(tmp_path / "w")
    )
    assert code == 0
    recipe = yaml.safe_load((tmp_path / "w/recipe.yaml").read_text())
    assert recipe["num_processes"] == 8
    assert recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"] * 8 == 64
    assert yaml.safe_load((tmp_path / "w/accelerate.yaml").read_text())["num_processes"] == 8
    assert "accelerate launch" in out or "hf-recipes sft" in out
    code, _, err = plan(
        capsys, *keys, "--gpu", "h100", "--gpus", "8", "--tokens", "1e7", "--write", str(tmp_path / "w")
    )
    assert code == 2
    assert "is there already" in err


def test_page_and_picture(model, capsys, tmp_path):
    keys = ("--model_name_or_path", model(LLAMA_7B), "--method", "qlora", "--gpu", "rtx-4090", "--tokens", "1e6")
    html, png = tmp_path / "plan.html", tmp_path / "plan.png"
    assert plan(capsys, *keys, "--html", str(html), "--png", str(png))[0] == 0
    assert "GeForce RTX 4090" in html.read_text(encoding="utf-8")
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Nothing to plan"),
        (("--gpu", "h1000"), "Nothing to plan"),
        (("--model_name_or_path", "MODEL", "--gpu", "h1000"), "'h1000' is not in the catalogue"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--gpus", "0"), "--gpus: '0' is no whole number"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--tokens", "many"), "--tokens: 'many' is no number"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--purchase", "lease"), "'lease' is none of on-demand"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--gpu-memory", "lots"), "'lots' is no size of memory"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--html", "nowhere/x.html"), "--html: 'nowhere/x.html'"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--html", "keep.yaml"), "does not end in .html"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--gpu-memory", "24"), "with its unit, like 24GiB"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--gpu-memory", "1e400"), "is no size of memory"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--gpus", "9" * 5000), "is no whole number"),
        (("--model_name_or_path", "MODEL", "--gpu", ""), "No accelerator named"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--mfu", "40"), "more than the peak"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--mfu", "0.4", "--tokens-per-second", "9"), "one of them"),
        (("--model_name_or_path", "MODEL", "--gpu", "h100", "--pue", "0.1"), "--pue: 0.1 is below 1"),
        (("--model_name_or_path", "MODEL", "--gpuss", "8"), "--gpuss is no option of `hf-recipes plan`"),
        (("--model_name_or_path", "no/such/model/here"), "is not a model directory"),
        (("--method", "lora", "--gpu", "h100"), "'model_name_or_path' is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "nothing",
)
def test_wrong_use_is_one_sentence(model, capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    given = [model(LLAMA_7B) if each == "MODEL" else each for each in arguments]
    code, out, err = plan(capsys, *given)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("stored", ["gptq", "awq"])
def test_a_base_that_cannot_be_trained_is_no_plan(model, capsys, stored):
    config = {**LLAMA_7B, "quantization_config": {"quant_method": stored, "bits": 4, "group_size": 128}}
    code, _, err = plan(capsys, "--model_name_or_path", model(config), "--method", "full", "--gpu", "h100")
    assert code == 2
    assert stored in err


def test_a_stored_4_bit_base_is_planned_in_4_bits(model, capsys):
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    keys = ("--method", "lora", "--gpu", "l4", "--tokens", "1e5", "--max_length", "256")
    plain = plan_json(capsys, "--model_name_or_path", model(LLAMA_7B), *keys)[1]
    packed = plan_json(capsys, "--model_name_or_path", model({**LLAMA_7B, "quantization_config": stored}), *keys)[1]
    weights = [found["devices"][0]["chosen"]["memory"]["phases"]["save"]["weights"] for found in (plain, packed)]
    assert weights[1] < 0.35 * weights[0]  # 0.56 bytes on linear layers in place of 2


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_model_that_does_not_continue_text_is_refused(model, capsys, kind):
    code, _, err = plan(capsys, "--model_name_or_path", model({"model_type": kind}), "--gpu", "h100")
    assert code == 2
    assert len(err.strip().splitlines()) == 1


@pytest.mark.trials
def test_a_traced_step_agrees(tiny_model_dir, capsys):
    code, found = plan_json(
        capsys, "--model_name_or_path", str(tiny_model_dir), "--gpu", "t4", "--tokens", "1e5", "--trace"
    )
    assert code == 0
    traced = found["trace"]["memory"]["active_bytes"]
    # Operations are traced as on a CPU: without the workspaces of a GPU's matrix products.
    assert found["trace"]["formula_active_bytes"] - workspace_bytes("cuda") == pytest.approx(traced, rel=0.15)


def test_the_recipe_that_is_read_is_never_written_over(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("# mine\nmodel_name_or_path: nowhere\n")
    code, _, err = plan(capsys, "--config", str(recipe), "--gpu", "h100", "--write", str(tmp_path), "--overwrite")
    assert code == 2
    assert "is the recipe itself, which would be lost" in err
    assert recipe.read_text().startswith("# mine")
    other = tmp_path / "other.yaml"
    other.write_text("model_name_or_path: nowhere\n")
    code, _, err = plan(capsys, "--config", str(other), "--gpu", "h100", "--write", str(tmp_path))
    assert code == 2
    assert "is there already: name another directory, or give --overwrite" in err


def test_here_without_a_model_writes_nothing(tmp_path, capsys):
    code, _, err = plan(capsys, "--here", "--html", str(tmp_path / "plan.html"))
    assert code == 2
    assert "writes no plan" in err
