from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from chat_families import FAMILIES, family_tokenizer, make_tokenizer
from conversations import learned
from row_files import write_rows

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe
from hf_recipes.data.masking.masks import Encoded
from hf_recipes.data.prepare import prepare_data
from hf_recipes.data.report import length_percentiles, report_table

END = "<|im_end|>"


@pytest.fixture(scope="module")
def chatml():
    return family_tokenizer("chatml")


def alpaca(count, word="answer"):
    return [{"instruction": f"question {word} {index}", "output": f"{word} {index}"} for index in range(count)]


@pytest.fixture
def files(tmp_path):
    """A domain file of 100 rows and a general one of 60."""
    domain = write_rows(tmp_path / "domain.jsonl", alpaca(100))
    general = write_rows(tmp_path / "general.json", [{"text": f"general text number {index}"} for index in range(60)])
    return [{"path": str(domain)}, {"path": str(general), "role": "general"}]


def test_split_then_mix_with_shares_and_sources(files, chatml):
    data = prepare_data(files, chatml, max_length=64)
    # 90 of 100 domain rows are trained on; 90 * 0.15 / 0.85 = 15.88 general rows make up 15 %.
    assert data.train["source"].count("domain") == 90 and data.train["source"].count("general") == 16
    assert data.train["source"][:90] != ["domain"] * 90
    assert set(data.train.column_names) == {"input_ids", "labels", "length", "source", "row_id"}
    assert all(
        row_id.split("/")[-1].split(":")[0] in ("domain.jsonl", "general.json") for row_id in data.train["row_id"]
    )
    assert data.report["general_share"]["reached"] == pytest.approx(16 / 106)
    assert data.report["end_of_turn"] == {"text": END, "token_id": 1, "is_eos": False}
    json.dumps(json_safe(data.report), allow_nan=False)


def test_d6_eval_sets_are_not_mixed_and_are_named_by_role(files, chatml):
    data = prepare_data(files, chatml, max_length=64)
    parts = data.eval_by_role()
    assert {name: len(part) for name, part in parts.items()} == {"domain": 10, "general": 6}
    assert not set(data.eval["row_id"]) & set(data.train["row_id"])
    alone = prepare_data(files[:1], chatml, max_length=64)
    assert alone.eval["row_id"] == parts["domain"]["row_id"]


def test_d4_duplicates_within_and_across_sources_never_lie_on_both_sides(tmp_path, chatml):
    rows = alpaca(30) * 4
    domain = write_rows(tmp_path / "domain.jsonl", rows)
    general = write_rows(tmp_path / "general.jsonl", alpaca(60))
    sources = [{"path": str(domain)}, {"path": str(general), "role": "general"}]
    data = prepare_data(sources, chatml, max_length=64, general_share=0.3, eval_share=0.2)
    held_out = {tuple(ids) for ids in data.eval["input_ids"]}
    assert held_out and not held_out & {tuple(ids) for ids in data.train["input_ids"]}


def test_d2_every_row_read_is_kept_or_dropped_with_a_reason_and_a_place(tmp_path, chatml, caplog):
    file = tmp_path / "rows.jsonl"
    rows = [*alpaca(20), {"instruction": "a", "output": 3}, {"instruction": "a"}, {"instruction": "a", "output": " "}]
    rows += alpaca(1, word="long " * 100)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no json\n")
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        report = prepare_data([{"path": str(file)}], chatml, max_length=64).report
    (source,) = report["sources"]
    reasons = {reason: (entry["count"], entry["examples"][0]["row"]) for reason, entry in source["dropped"].items()}
    assert reasons == {
        "field 'output' is a number, not text": (1, 21),
        "field 'output' is missing": (1, 22),
        "an assistant turn is empty": (1, 23),
        "longer than max_length 64": (1, 24),
        "not valid JSON": (1, 25),
    }
    assert source["read"] == 25 == source["kept"] + sum(count for count, _ in reasons.values())
    assert source["kept"] == source["train"] + source["eval"] + source["not_drawn"] == 20
    assert any("5 of 25 rows dropped" in record.message for record in caplog.records)
    table = report_table(report)
    assert all(reason in table for reason in reasons)


def test_d1_bad_rows_fail_stops_at_the_first_with_file_row_and_field(tmp_path, chatml):
    file = write_rows(tmp_path / "rows.jsonl", [*alpaca(3), {"instruction": "a", "output": {"a": 1}}])
    with pytest.raises(UserError, match=r"rows\.jsonl, line 4: field 'output' is an object, not text"):
        prepare_data([{"path": str(file)}], chatml, max_length=64, bad_rows="fail")


def test_d10_nothing_left_says_why_and_what_to_raise(tmp_path, chatml):
    file = write_rows(tmp_path / "rows.jsonl", alpaca(5, word="long " * 50))
    with pytest.raises(UserError, match=r"All 5 rows .* 5 × longer than max_length 32.*raise max_length \(now 32\)"):
        prepare_data([{"path": str(file)}], chatml, max_length=32)


def test_d10_counts_of_cut_and_shortened_samples(tmp_path, chatml):
    long = [{"instruction": "word " * 200, "output": "yes"}]
    domain = write_rows(tmp_path / "domain.jsonl", alpaca(10) + long)
    texts = write_rows(tmp_path / "texts.jsonl", [{"text": "word " * 200}, {"text": "short"}])
    sources = [{"path": str(domain)}, {"path": str(texts), "role": "general"}]
    data = prepare_data(sources, chatml, max_length=64, overlong="shorten_prompt", eval_share=0)
    first, second = data.report["sources"]
    assert (first["shortened"], first["truncated"], sum(first["dropped"].values(), 0)) == (1, 0, 0)
    assert second["truncated"] == 1
    assert data.eval is None and max(map(len, data.train["input_ids"])) <= 64


def test_d5_too_small_a_general_source_is_told(files, chatml, caplog):
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        data = prepare_data(files, chatml, max_length=64, general_share=0.5)
    # All 54 general training rows to 90 domain ones: 0.375.
    assert data.report["general_share"]["reached"] == pytest.approx(54 / 144)
    assert any("general_share: 0.375" in record.message for record in caplog.records)


def test_without_general_source_the_share_is_ignored_with_one_notice(files, chatml, caplog):
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        data = prepare_data(files[:1], chatml, max_length=64)
    assert data.report["general_share"]["reached"] is None and len(data.train) == 90
    assert sum("is ignored" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("unit", ["tokens", "supervised_tokens"])
def test_d5_shares_by_tokens_to_half_a_sample(files, chatml, unit):
    data = prepare_data(files, chatml, max_length=64, share_unit=unit)
    column = "input_ids" if unit == "tokens" else "labels"
    sizes = [sum(token >= 0 for token in row[column]) for row in data.train]
    general = sum(size for size, name in zip(sizes, data.train["source"], strict=True) if name == "general")
    assert general / sum(sizes) == pytest.approx(0.15, abs=max(sizes) / 2 / sum(sizes))
    assert data.report["general_share"]["by"][unit] == pytest.approx(general / sum(sizes))


def test_same_seed_same_data_and_another_seed_another_order(files, chatml):
    first, again, other = (prepare_data(files, chatml, max_length=64, seed=seed) for seed in (1, 1, 2))
    assert first.train.to_list() == again.train.to_list() and first.eval.to_list() == again.eval.to_list()
    assert first.train["row_id"] != other.train["row_id"]


def test_d15_fingerprint_follows_content_settings_tokenizer_and_template(files, chatml, tmp_path):
    def of(sources=files, tokenizer=chatml, **settings):
        return prepare_data(sources, tokenizer, **{"max_length": 64, **settings}).report["fingerprint"]

    base = of()
    assert of() == base
    other_template = family_tokenizer("chatml")
    other_template.chat_template += "{# a comment #}"
    other_vocabulary = make_tokenizer(FAMILIES["chatml"].template, (*FAMILIES["chatml"].special_tokens, "<x>"), END)
    changed = [
        of(max_length=63),
        of(seed=7),
        of(overlong="shorten_prompt"),
        of(tokenizer=other_template),
        of(tokenizer=other_vocabulary),
    ]
    write_rows(tmp_path / "domain.jsonl", [*alpaca(99), {"instruction": "question answer 99", "output": "Answer 99"}])
    changed.append(of())
    assert len({base, *changed}) == 7


def test_wrong_settings_are_named(files, chatml):
    for settings, message in (
        ({"overlong": "cut"}, "overlong must be one of"),
        ({"eval_share": 1.0}, "eval_share is the part held out"),
        ({"general_share": 15}, "general_share is the general part"),
        ({"bad_rows": "skip"}, "bad_rows must be one of"),
        ({"max_length": 0}, "max_length must be at least 2"),
    ):
        with pytest.raises(UserError, match=message):
            prepare_data(files, chatml, **{"max_length": 64, **settings})


def test_length_percentiles_are_nearest_rank():
    # Of 1 … 10: half lie at or below 5, 90 % at or below 9, and 99 % need the tenth.
    assert length_percentiles(range(1, 11)) == {"p50": 5, "p90": 9, "p99": 10, "max": 10}


@pytest.mark.parametrize(
    ("name", "rows"),
    [("alpaca_en_demo.json", 999), ("glaive_toolcall_en_demo.json", 300), ("v1_sft_demo.jsonl", 500)],
)
def test_real_files_keep_every_row_and_learn_whole_answers(shared_data, chatml, name, rows):
    check_real_file(shared_data / name, rows, chatml)


@pytest.mark.real_model
def test_real_tool_calls_with_the_real_template(shared_data, smollm2_dir):
    from transformers import AutoTokenizer

    check_real_file(shared_data / "glaive_toolcall_en_demo.json", 300, AutoTokenizer.from_pretrained(smollm2_dir))


def check_real_file(file, rows, tokenizer):
    """All rows are kept; what is learned (of 200) is every assistant turn of the text, whole, with its end."""
    data = prepare_data([{"path": str(file)}], tokenizer, max_length=None)
    assert len(data.train) + len(data.eval) == rows
    for row in data.train.select(range(200)).to_list():
        spans = learned(tokenizer, Encoded(np.array(row["input_ids"]), np.array(row["labels"]), 0))
        text = tokenizer.decode(row["input_ids"])
        answers = [part.split(END)[0] for part in text.split("<|im_start|>assistant\n")[1:]]
        assert spans == [answer + END for answer in answers]


def test_half_a_character_is_a_bad_row_and_no_crash(tmp_path, chatml):
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"instruction": "a \\ud83d", "output": "b"}\n' + "".join(json.dumps(row) + "\n" for row in alpaca(9))
    )
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "half \\ud83d"}\n{"text": "whole"}\n')
    sources = [{"path": str(file)}, {"path": str(texts), "role": "general"}]
    report = prepare_data(sources, chatml, max_length=64, eval_share=0).report
    for source in report["sources"]:
        (reason,) = source["dropped"]
        assert "half of a surrogate pair" in reason and source["dropped"][reason]["examples"][0]["row"] == 1


def test_what_is_told_is_told_again_when_nothing_is_prepared_anew(files, chatml, caplog, tmp_path):
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="hf_recipes"):
            prepare_data(files, chatml, max_length=64, general_share=0.5, cache_dir=tmp_path / "cache")
        assert sum("is not reached" in record.message for record in caplog.records) == 1


def test_a_cache_that_is_a_file_is_told(files, chatml, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"data_cache_dir: .* is a file"):
        prepare_data(files, chatml, max_length=64, cache_dir=tmp_path / "cache")


def test_parts_of_one_row_are_no_near_duplicates(tmp_path, chatml, caplog):
    file = write_rows(tmp_path / "rows.jsonl", [{"text": "word " * 600}, *({"text": f"short {n}"} for n in range(9))])
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        report = prepare_data([{"path": str(file)}], chatml, max_length=32, overlong="split").report
    assert not any("near duplicates" in record.message for record in caplog.records)
    source = report["sources"][0]
    assert source["samples"] > source["kept"] == 10 and "samples" in report_table(report)
