"""What lies beside the weights: tokenizer to the byte, every end token named; each fault found."""

from __future__ import annotations

import shutil

import pytest
from export_helpers import change_json, read

from hf_recipes.core.errors import CheckFailed
from hf_recipes.export.companions import write_companions
from hf_recipes.export.proofs.companions import lines, prove_companions


@pytest.fixture
def places(tmp_path, tokenizer):
    """Directories of an adapter with its tokenizer, of a base with another template, and of an output."""
    adapter, base, output = (tmp_path / name for name in ("adapter", "base", "output"))
    for directory in (adapter, base):
        tokenizer.save_pretrained(directory)
    output.mkdir()
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (base / "generation_config.json").write_text('{"eos_token_id": [0, 2], "temperature": 0.6}')
    (adapter / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 0.7}')
    config = {"vocab_size": len(tokenizer), "eos_token_id": 0, "pad_token_id": 2, "bos_token_id": 1}
    return {"output": output, "adapter": adapter, "base": base}, config


def written(places, end_tokens=()):
    directories, config = places
    notices = write_companions(directories["output"], directories["adapter"], directories["base"], config, end_tokens)
    return notices, directories


def test_all_end_tokens_of_base_adapter_and_training_are_named(places):
    notices, directories = written(places, [7])
    settings = read(directories["output"] / "generation_config.json")
    assert settings == {"eos_token_id": [2, 0, 7], "temperature": 0.7}
    assert any("(7) were added" in notice for notice in notices)
    proof = prove_companions(**directories, end_tokens=[7])
    assert proof["end_token_ids"] == [2, 0, 7]
    assert {"tokenizer.json", "chat_template.jinja"} <= set(proof["files"])
    assert proof["tokens"] == proof["rows"] and proof["notices"] == []
    assert "end tokens 2, 0, 7" in lines(proof)[0]


def test_a_run_without_generation_config_gets_one(places):
    directories, _ = places
    for name in ("adapter", "base"):
        (directories[name] / "generation_config.json").unlink()
    written(places, [2])
    assert read(directories["output"] / "generation_config.json") == {"eos_token_id": [0, 2]}


@pytest.mark.parametrize("config", [{"eos_token_id": 0}, {"text_config": {"eos_token_id": 0}}])
def test_the_trained_tokenizers_end_token_is_named_where_no_file_names_any(places, config):
    """An adapter of another trainer, whose tokenizer ends turns by another token (2) than the base does."""
    directories, _ = places
    for name in ("adapter", "base"):
        (directories[name] / "generation_config.json").unlink()
    notices, _ = written((directories, config))
    assert read(directories["output"] / "generation_config.json") == {"eos_token_id": [0, 2]}
    assert notices == ["End tokens of the training (2) were added to generation_config.json."]
    assert prove_companions(**directories)["end_token_ids"] == [0, 2]


def test_nothing_is_written_where_the_config_names_the_end_already(places):
    directories, config = places
    for name in ("adapter", "base"):
        (directories[name] / "generation_config.json").unlink()
    for same in ({**config, "eos_token_id": 2}, {"text_config": {"eos_token_id": [0, 2]}}):
        assert written((directories, same))[0] == []
        assert not (directories["output"] / "generation_config.json").exists()
        assert 2 in prove_companions(**directories)["end_token_ids"]


def base_template(directories):
    shutil.copy(directories["base"] / "chat_template.jinja", directories["output"])


def no_template(directories):
    (directories["output"] / "chat_template.jinja").unlink()


def one_end(directories):
    change_json(directories["output"] / "generation_config.json", eos_token_id=2)


def few_rows(directories):
    change_json(directories["output"] / "config.json", vocab_size=2)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (base_template, "chat_template.jinja differs"),
        (no_template, "chat_template.jinja is missing"),
        (one_end, r"every end token \(0, 7 missing\)"),
        (few_rows, "eos_token has id 2, but the embeddings have 2 rows"),
    ],
)
def test_a_fault_beside_the_weights_is_found(places, fault, message):
    _, directories = written(places, [7])
    fault(directories)
    with pytest.raises(CheckFailed, match=message):
        prove_companions(**directories, end_tokens=[7])


def test_other_pad_tokens_and_tokens_without_a_row_are_told(places):
    _, directories = written(places)
    change_json(directories["output"] / "config.json", pad_token_id=5, vocab_size=300)
    notices = prove_companions(**directories)["notices"]
    assert any("pad_token_id is 5 in config.json, but 2 in the tokenizer" in notice for notice in notices)
    assert any("the embeddings 300" in notice for notice in notices)
