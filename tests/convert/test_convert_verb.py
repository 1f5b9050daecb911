"""`hf-recipes convert` end to end: what is written, printed and refused."""

from __future__ import annotations

import json
import os

import pytest

from hf_recipes.cli.main import main
from hf_recipes.recipe.resolve import load_recipe

AXOLOTL = """
base_model: org/model
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: chat_template
    field_messages: conversations
    train_on_eos: all
sequence_len: 2048
learning_rate: 2e-4
val_set_size: 0.05
micro_bach_size: 2
wandb_project:
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ax.yaml").write_text(AXOLOTL, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"conversations": []}\n', encoding="utf-8")
    return tmp_path


def test_a_recipe_is_written_that_loads_and_everything_is_told(folder, capsys):
    assert main(["convert", "ax.yaml"]) == 0
    told = capsys.readouterr().out
    recipe = load_recipe("recipe.yaml")
    assert recipe.values["datasets"] == [
        {"path": "rows.jsonl", "format": "messages", "columns": {"messages": "conversations"}}
    ]
    assert (recipe.values["method"], recipe.values["max_length"], recipe.values["learning_rate"]) == (
        "qlora",
        2048,
        2e-4,
    )
    assert "micro_bach_size = 2: no key of Axolotl known here (did you mean 'micro_batch_size'?)" in told
    assert "datasets[0].train_on_eos = all: the token that ends each answer" in told
    assert "per_device_train_batch_size = 1: Axolotl's micro_batch_size; ours is 8" in told
    assert told.rstrip().endswith("Written to recipe.yaml. Next: hf-recipes inspect --config recipe.yaml")
    text = (folder / "recipe.yaml").read_text(encoding="utf-8")
    assert "# sequence_len there; memory grows with it in proportion" in text
    assert "# datasets[0].train_on_eos: all: the token that ends each answer" in text
    assert sorted(path.name for path in folder.iterdir()) == ["ax.yaml", "recipe.yaml", "rows.jsonl"]


def test_json_says_what_became_of_every_key(folder, capsys):
    assert main(["convert", "ax.yaml", "--output", "sub/my.yaml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["from"], told["written"]) == ("axolotl", "sub/my.yaml")
    assert told["recipe"]["datasets"][0]["path"] == "../rows.jsonl"
    assert {row["key"]: row["became"] for row in told["keys"]}["micro_bach_size"] == "unknown"


def test_an_existing_file_is_never_overwritten(folder, capsys):
    (folder / "recipe.yaml").write_text("mine", encoding="utf-8")
    assert main(["convert", "ax.yaml"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (folder / "recipe.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("learning_rate: 1\n", [], "whose configuration this is cannot be told"),
        ("learning_rate: 1\n", ["--from", "axolotl"], "no model of Axolotl is named in it"),
        ("base_model: m\nsequence_len: 5\n", [], "no data of Axolotl is named in it"),
        ("base_model: m\nsequence_len: 5\ndatasets: [{path: org/d}]\n", [],
         "No recipe was written: 'max_length' ('sequence_len' in c.yaml) is 5: give a value from 8"),
        ("base_model: m\nsequence_len: [\n", [], "not valid YAML"),
        ("rl: dpo\nbase_model: m\nadapter: lora\n", [], "trains on preferences"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_one_sentence_and_leaves_nothing(folder, capsys, text, arguments, sentence):
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    assert main(["convert", "c.yaml", "--output", "out.yaml", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(folder.glob("*out.yaml*"))


def test_a_script_is_converted_too(folder, capsys):
    (folder / "train.sh").write_text("swift sft --model org/m --dataset rows.jsonl --lora_rank 4\n", encoding="utf-8")
    assert main(["convert", "train.sh", "--output", "r.yaml"]) == 0
    assert "ms-swift" in capsys.readouterr().out
    assert load_recipe("r.yaml").values["lora_r"] == 4


def test_json_is_read_as_well_as_yaml(folder, capsys):
    keys = {"model_name_or_path": "org/m", "stage": "sft", "dataset": "d", "learning_rate": 1e-4}
    (folder / "lf.json").write_text(json.dumps(keys, indent="\t"), encoding="utf-8")
    assert main(["convert", "lf.json"]) == 0
    assert load_recipe("recipe.yaml").values["learning_rate"] == 1e-4
    assert main(["convert", "gone.json", "--output", "other.yaml"]) == 2
    (folder / "list.json").write_text("[1]", encoding="utf-8")
    assert main(["convert", "list.json", "--output", "other.yaml"]) == 2
    assert "this file holds a list" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(folder, capsys):
    os.mkfifo("pipe.yaml")
    assert main(["convert", "pipe.yaml"]) == 2
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("bin.yaml", b"\x80\x81\xff", "'bin.yaml' is not UTF-8 text (byte 0)"),
        ("wide.yaml", "base_model: org/model\n".encode("utf-16"), "'wide.yaml' is not UTF-8 text (byte 0)"),
        ("empty.yaml", b"", "'empty.yaml' holds no keys"),
        ("comments.yaml", b"# base_model: org/model\n\n", "'comments.yaml' holds no keys"),
        ("folder.yaml", None, "'folder.yaml' is a directory"),
    ],
)
def test_what_is_no_configuration_is_one_sentence(name, content, sentence, folder, capsys):
    if content is None:
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(content)
    assert main(["convert", name]) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1 and "Errno" not in told
    assert not (folder / "recipe.yaml").exists()


def test_a_refused_conversion_leaves_no_directory_and_one_that_is_written_does(folder, capsys):
    (folder / "bad.yaml").write_text(AXOLOTL.replace("sequence_len: ", "sequence_len: 5 #"), encoding="utf-8")
    assert main(["convert", "bad.yaml", "--output", "new/deep/recipe.yaml"]) == 2
    assert not (folder / "new").exists()
    assert main(["convert", "ax.yaml", "--output", "new/deep/recipe.yaml"]) == 0
    assert (folder / "new" / "deep" / "recipe.yaml").is_file()
