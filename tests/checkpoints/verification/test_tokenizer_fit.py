from __future__ import annotations

import json
import shutil

import pytest
from checkpoint_helpers import tiny_llama

from hf_recipes.checkpoints.verification.scan_facts import TensorFacts
from hf_recipes.checkpoints.verification.tokenizer_fit import embedding_rows, largest_token_id
from hf_recipes.checkpoints.verification.verify import verify_checkpoint


@pytest.mark.parametrize(
    ("name", "content", "largest"),
    [
        ("tokenizer.json", {"model": {"vocab": {"a": 0, "b": 9}}, "added_tokens": [{"id": 4}]}, 9),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 4}, {"id": 3}]}, 4),
        ("tokenizer.json", {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}, 1),
        ("added_tokens.json", {"<x>": 7}, 7),
        ("tokenizer_config.json", {"added_tokens_decoder": {"11": {"content": "<x>"}}}, 11),
        ("tokenizer_config.json", {}, None),
        ("tokenizer.json", {"model": None, "added_tokens": "no"}, None),
        ("tokenizer.json", [1], None),
        ("added_tokens.json", {"<x>": "7", "<y>": True}, None),
    ],
)
def test_the_largest_id_of_every_kind_of_tokenizer_file(name, content, largest):
    assert largest_token_id(name, content) == largest


def test_the_embedding_is_found_under_the_names_models_give_it():
    def rows(*names):
        return embedding_rows({name: TensorFacts("F32", (10, 4)) for name in names})

    for name in ("model.embed_tokens.weight", "transformer.wte.weight", "base_model.model.model.embed_tokens.weight"):
        assert rows(name) == 10
    assert rows("model.norm.weight", "vision_tower.embeddings.weight") is None
    assert embedding_rows({"model.embed_tokens.weight": TensorFacts("U8", (40, 1))}) is None


@pytest.mark.parametrize(("rows", "good"), [(0, True), (-1, True), (-2, False), (8, True)])
def test_a_tokenizer_that_outgrows_the_embedding_is_found_and_padding_is_not(rows, good, tokenizer, tmp_path):
    tiny_llama(vocab_size=len(tokenizer) + rows).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    report = verify_checkpoint(tmp_path, "structure")
    assert report.ok is good
    assert all("tokenizer.json" in str(problem) for problem in report.problems)
    assert any("a text that holds this token" in note for note in report.notes) == (rows == -1)


def test_a_token_added_later_is_seen(tiny_model_dir, tokenizer, tmp_path):
    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    content = json.loads((model / "tokenizer.json").read_text())
    for name in ("<new>", "<newer>"):
        last = content["added_tokens"][-1]
        content["added_tokens"].append({**last, "id": max(last["id"] + 1, len(tokenizer)), "content": name})
    (model / "tokenizer.json").write_text(json.dumps(content))
    (problem,) = verify_checkpoint(model, "structure").problems
    assert f"up to {len(tokenizer) + 1}, but the embedding has {len(tokenizer)} rows" in problem.what
