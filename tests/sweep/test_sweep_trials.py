"""Points → trials with checked recipes; what of them an overfit test is made for; which sweeps can be gone on with."""

from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.models.precision import Hardware
from hf_recipes.recipe.overlay import parse_overrides
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.sweep.best import write_best
from hf_recipes.sweep.book import Book, check_same_sweep, plain_values, read_book
from hf_recipes.sweep.trials import arguments, make_trials, needs_overfit_check

CONFIG = "smollm2/sft_lora"  # learning_rate 2e-3, given for lora; micro-batch 4


def trials(*points, fixed=None, processes=1, hardware=None, **more):
    return make_trials(CONFIG, fixed or {}, points, processes, hardware, **more)


def test_keys_read_back_as_they_were():
    keys = {"a": 1e-5, "b": "off", "c": [1, "x"], "d": {"e": True}, "f": None, "g": "1e-3", "h": False, "i": "--x=1"}
    assert parse_overrides(arguments(keys)) == keys


def test_a_batch_keeps_the_micro_batch_where_that_divides():
    found = trials({"batch": 16}, {"batch": 6}, processes=2)
    values = [
        (t.recipe.values["per_device_train_batch_size"], t.recipe.values["gradient_accumulation_steps"]) for t in found
    ]
    assert values == [(4, 2), (3, 1)]


def test_a_method_that_the_recipe_is_not_for_takes_its_own_rate():
    found = trials({"method": "lora"}, {"method": "full"}, {"method": "prefix"}, {"method": "qlora"})
    assert [trial.recipe.values["learning_rate"] for trial in found] == [2e-3, 2e-5, 3e-3, 2e-3]
    (given,) = trials({"method": "full"}, fixed={"learning_rate": 1e-4})
    assert given.recipe.values["learning_rate"] == 1e-4


def test_points_with_the_same_recipe_are_one_trial():
    assert len(trials({"learning_rate": 2e-3}, {}, {"batch": 4})) == 1


def test_a_wrong_key_of_any_trial_stops_before_the_first():
    with pytest.raises(UserError, match=r"^rank 9999: --lora_r: 'lora_r' is 9999: give a value from 1 to 4096\.$"):
        trials({"lora_r": 8}, {"lora_r": 9999})


def test_a_strategy_that_cannot_start_stops_before_the_first():
    with pytest.raises(UserError, match=r"^strategy tp: "):
        trials({"strategy": "single"}, {"strategy": "tp"}, processes=1)
    assert len(trials({"strategy": "ddp"}, {"strategy": "auto"}, processes=2)) == 2
    # A config file says itself how its processes share the work.
    assert len(trials({"strategy": "single"}, {"strategy": "tp"}, processes=1, own_launch=False)) == 2


def test_a_batch_is_of_the_ranks_that_see_different_rows():
    (wide, narrow) = trials(
        {"strategy": "ddp", "batch": 8}, {"strategy": "cp", "batch": 8}, processes=4, own_launch=False
    )
    assert wide.recipe.values["per_device_train_batch_size"] * wide.recipe.values["gradient_accumulation_steps"] == 2
    each = narrow.recipe.values["per_device_train_batch_size"] * narrow.recipe.values["gradient_accumulation_steps"]
    assert each == 8  # four ranks share a row's tokens


@pytest.mark.parametrize(
    ("hardware", "impossible"),
    [(Hardware("cpu", False), {"bf16", "fp16"}), (Hardware("cpu", True), {"fp16"}), (Hardware("cuda", True), set())],
)
def test_precisions_that_a_machine_has_not_are_left_out(hardware, impossible):
    found = trials(*({"precision": name} for name in ("fp32", "bf16", "fp16")), hardware=hardware)
    assert {trial.point["precision"] for trial in found if trial.impossible} == impossible


def test_a_method_that_refuses_another_key_is_left_out():
    found = trials({"method": "lora"}, {"method": "ia3"}, fixed={"weight_decay": 0.1})
    assert [trial.impossible is None for trial in found] == [True, False]
    assert "weight_decay is 0.1, but IA3" in found[1].impossible


def test_the_overfit_test_is_made_once_for_each_kind_and_not_over_rates():
    found = trials({"method": "lora", "seed": 1}, {"method": "lora", "seed": 2}, {"method": "full", "seed": 1})
    assert [needs_overfit_check(found, index) for index in range(3)] == [True, False, True]
    rates = trials({"learning_rate": 1e-5}, {"learning_rate": 1e-4})
    assert not any(needs_overfit_check(rates, index) for index in range(2))


def test_the_winners_recipe_reads_back_the_same(tmp_path):
    (trial,) = trials({"learning_rate": 1e-5, "batch": 8, "lora_target_modules": ["all-linear"], "watch.samples": 0})
    write_best(tmp_path / "best.yaml", trial.recipe, "why")
    assert load_recipe(str(tmp_path / "best.yaml")).fingerprint() == trial.recipe.fingerprint()


def test_the_winners_recipe_names_files_by_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"domain": "rows.jsonl", "choices": "choices.jsonl", "tasks": ["task.yaml", "arc_easy"]}
    for name in ("rows.jsonl", "choices.jsonl", "task.yaml", "schema.json", "own.py"):
        (tmp_path / name).write_text("{}")
    evaluation = {**files, "function": "own.py:score", "format": {"schema": "schema.json"}, "samples": 3}
    (trial,) = trials({"evaluation": evaluation})
    write_best(tmp_path / "best.yaml", trial.recipe, "why")
    monkeypatch.chdir("/")
    assert load_recipe(str(tmp_path / "best.yaml")).values["evaluation"] == {
        "domain": str(tmp_path / "rows.jsonl"),
        "choices": str(tmp_path / "choices.jsonl"),
        "tasks": [str(tmp_path / "task.yaml"), "arc_easy"],
        "function": f"{tmp_path}/own.py:score",
        "format": {"schema": str(tmp_path / "schema.json")},
        "samples": 3,
    }


def test_another_recipe_does_not_go_on_with_a_sweep(tmp_path):
    base = load_recipe(CONFIG).values
    book = Book("sft_lora", plain_values(base), ["learning_rate", "batch"])
    same = {**base, "learning_rate": 1.0, "per_device_train_batch_size": 1, "output_dir": "x", "lora_r": 8}
    check_same_sweep(book, tmp_path, "sft_lora", same, ["lora_r"])
    with pytest.raises(UserError, match=r"were made with other keys \(lora_r 16 → 8\)"):
        check_same_sweep(book, tmp_path, "sft_lora", same, [])
    with pytest.raises(UserError, match=r"holds a sweep of 'sft_lora', not of 'other'"):
        check_same_sweep(book, tmp_path, "other", base, [])


def test_a_book_reads_back_and_a_damaged_one_is_told(tmp_path):
    assert read_book(tmp_path / "new") is None
    Book("r", {"a": 1}, ["b"]).write(tmp_path)
    assert vars(read_book(tmp_path)) == vars(Book("r", {"a": 1}, ["b"]))
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(UserError, match="cannot be read"):
        read_book(tmp_path)
