from __future__ import annotations

import json

import pytest

from hf_recipes.cli.main import main


@pytest.fixture
def recipe(tmp_path, tiny_model_dir):
    rows = [{"prompt": f"question {number}", "completion": f"answer {number}"} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "recipe.yaml"
    file.write_text(f"model_name_or_path: {tiny_model_dir}\ndatasets: [{{path: {tmp_path}/rows.jsonl}}]\n")
    return [f"--config={file}", f"--data_cache_dir={tmp_path / 'cache'}"]


def test_the_account_is_printed_and_what_was_prepared_is_found_by_a_run(recipe, tmp_path, capsys):
    assert main(["prepare", *recipe]) == 0
    assert "rows    domain  prompt_completion    40" in capsys.readouterr().out
    assert list((tmp_path / "cache" / "sources").glob("*/000000.arrow"))


def test_json_is_the_account(recipe, capsys):
    assert main(["prepare", *recipe, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sources"][0]["read"] == 40 and report["train"]["rows"] == 36


def test_shards_leave_the_choosing_to_the_last_call(recipe, tmp_path, capsys):
    assert main(["prepare", *recipe, "--shard", "0/2"]) == 0
    assert "Shard 0/2 is prepared" in capsys.readouterr().out
    assert not (tmp_path / "cache" / "selections").exists()


@pytest.mark.parametrize("shard", ["2/2", "1", "a/b", "-1/2", "1/0"])
def test_a_wrong_shard_is_told(recipe, shard, capsys):
    assert main(["prepare", *recipe, f"--shard={shard}"]) == 2
    assert "write I/N with I from 0 to N-1" in capsys.readouterr().err


def test_a_stream_cannot_be_prepared_ahead(recipe, capsys):
    assert main(["prepare", *recipe, "--streaming", "true"]) == 2
    assert "remove the key" in capsys.readouterr().err
