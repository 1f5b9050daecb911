"""The test on tiny models: sound set-ups pass, each fault is found, the model is afterwards as before."""

from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset
from peft import IA3Config, LoraConfig, get_peft_model
from tiny_models import make_tiny_llama
from transformers import DataCollatorForSeq2Seq

from hf_recipes import overfit_test
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.training.overfit.check import RunFacts
from hf_recipes.training.overfit.floor import Row
from hf_recipes.training.overfit.losses import SHIFTS, LossOfRows
from hf_recipes.training.overfit.passes import FewRows, learn_by_heart, own_rate, try_rate
from hf_recipes.training.overfit.probes import answer_facts, compare_answers
from hf_recipes.training.overfit.snapshot import Snapshot

IGNORED = -100
COLLATOR = SupervisedCollator(pad_token_id=2)


def rows_of(count=8, prompt=4, answer=8, below=60, seed=0) -> list[Row]:
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        ids = torch.randint(3, below, (prompt + answer,), generator=draw).tolist()
        rows.append({"input_ids": ids, "labels": [IGNORED] * prompt + ids[prompt:]})
    return rows


def changed(rows, **columns):
    return [{**row, **{name: change(row) for name, change in columns.items()}} for row in rows]


def base():
    """Weights large enough for the frozen head to tell tokens apart, as a trained one's are."""
    return make_tiny_llama(64, initializer_range=0.3)


def lora():
    return get_peft_model(base(), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))


def ia3():
    config = IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
    )
    return get_peft_model(make_tiny_llama(64, hidden_size=64), config)


def examined(model, rows, collator=COLLATOR, **more):
    """The result; the parameters are held against what they were."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    result = overfit_test(model, rows, collator, seconds=more.pop("seconds", 20), **more)
    for name, value in model.named_parameters():
        assert torch.equal(value.view(torch.uint8), before[name].view(torch.uint8)), name
    return result


@pytest.mark.parametrize("model", [lora, lambda: make_tiny_llama(64)], ids=["LoRA", "full"])
def test_sound_set_ups_pass(model):
    result = examined(model(), rows_of(), run=RunFacts(learning_rate=2e-3, steps=100))
    assert result.verdict.status == "passed", str(result)
    assert result.evidence.passes.losses[0] > 3.5  # about ln 64, or more
    assert min(result.evidence.passes.losses) < result.verdict.bound < 1
    assert dict(result.details())["entropy floor"].startswith("0.000")
    assert result.as_dict()["status"] == "passed"


@pytest.mark.trials
def test_what_moves_little_is_not_called_broken():
    # IA3 rescales a random model's activations: there is no way from there to its small, frozen head.
    result = examined(ia3(), rows_of(), seconds=5)
    assert result.verdict.status == "unfinished"
    assert "knows no more than a guess does" in str(result)


def test_answers_of_one_token_pass():
    assert examined(lora(), rows_of(answer=1)).verdict.status == "passed"


def test_a_budget_of_nothing_is_told_and_is_no_failure():
    result = examined(lora(), rows_of(), seconds=0.0)
    assert result.verdict.status == "unfinished"
    assert "too slow, or too busy, to tell within 0 s" in str(result)


FAULTY_ROWS = {
    "labels are shifted": changed(rows_of(), labels=lambda row: [*row["labels"][1:], IGNORED]),
    "do not follow the inputs": changed(
        rows_of(), labels=lambda row: rows_of(1, seed=row["input_ids"][0])[0]["labels"]
    ),
    "none of 8 rows": changed(rows_of(), labels=lambda row: [IGNORED] * len(row["labels"])),
    "rows are padding": changed(rows_of(), input_ids=lambda row: [2] * 12, labels=lambda row: [2] * 12),
    "another answer too": [
        {"input_ids": [5, 6, 7, answer], "labels": [IGNORED] * 3 + [answer]} for answer in (8, 9, 10, 11) * 3
    ],
}


@pytest.mark.parametrize("words", FAULTY_ROWS)
def test_faults_of_rows(words):
    result = examined(lora(), FAULTY_ROWS[words], seconds=2)
    assert not result.ok
    assert result.verdict.causes[0].kind == "data"
    assert words in str(result)


def frozen():
    model = lora()
    model.requires_grad_(False)
    return model


def disabled():
    model = lora()
    model.base_model.disable_adapter_layers()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    return model


def overflowing():
    model = base()
    model.model.layers[1].mlp.down_proj.weight.data.mul_(1e5).clamp_(-6e4, 6e4)
    return model.half()


def damaged():
    model = make_tiny_llama(64)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = math.nan
    return model


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (frozen, "nothing_trainable", "no parameter requires a gradient"),
        (disabled, "nothing_trainable", "gradients of all"),
        (overflowing, "precision", "float16 ends at 65,504"),
        (damaged, "precision", "layers.0.mlp.up_proj.weight holds numbers that are not finite"),
    ],
)
def test_faults_of_models(model, kind, words):
    result = examined(model(), rows_of(), seconds=2)
    assert not result.ok
    assert result.verdict.causes[0].kind == kind
    assert words in str(result)


@pytest.mark.parametrize(("rate", "words"), [(10.0, "10 is too large"), (1e-8, "1e-08 is too small")])
def test_learning_rates_beside_the_tests_own(rate, words):
    result = examined(lora(), rows_of(), run=RunFacts(learning_rate=rate, steps=50))
    (cause,) = result.verdict.causes
    assert cause.kind == "learning_rate"
    assert words in cause.what
    assert min(result.evidence.passes.losses) < result.verdict.bound  # at its own rate the same set-up learns


def test_a_base_that_knows_its_answers_sees_them_shuffled():
    model, rows = make_tiny_llama(64), rows_of(16)
    few = FewRows(LossOfRows(model, COLLATOR), [rows])
    assert learn_by_heart(few, 0.05, 60, Snapshot(model), rate=1e-2).losses[-1] <= 0.05
    prompts, answers = [row["input_ids"][:4] for row in rows], [row["input_ids"][4:] for row in rows]
    apart = [
        {"input_ids": prompt + answer, "labels": [IGNORED] * 4 + answer}
        for prompt, answer in zip(prompts, answers[5:] + answers[:5], strict=True)
    ]
    result = examined(model, rows)
    assert result.ok
    # This base knows nothing but its rows, so half-way from a guess is too much to ask of it: the comparison alone.
    assert result.evidence.answers.z < -5
    assert examined(model, apart, seconds=5).evidence.answers.z > -1.7


def test_the_first_rate_of_adapters_would_take_off_the_whole_loss_and_of_models_goes_by_width():
    assert own_rate(lora(), way=1.6, absolute_sum=400) == pytest.approx(0.004)
    assert own_rate(lora(), way=1.6, absolute_sum=1e-3) == 0.01
    assert own_rate(lora()) == 3e-3
    model = make_tiny_llama(64)
    assert own_rate(model, 1.6, 400) == own_rate(model)
    assert 0.05 / 128 < own_rate(model) < 0.05 / 8  # widths are between these


def test_the_pass_at_the_recipes_rate_is_the_first_of_learning():
    """Its gradients are used again, and what its step did is not."""
    model = make_tiny_llama(64)
    few, snapshot = FewRows(LossOfRows(model, COLLATOR), [rows_of()]), Snapshot(model)
    alone = learn_by_heart(few, 3.0, 60, snapshot, rate=1e-2)
    snapshot.put_back()
    begun, gradients = try_rate(few, 0.5, 1)
    snapshot.put_back()
    after = learn_by_heart(few, 3.0, 60, snapshot, rate=1e-2, begun=begun)
    assert gradients.norm > 0
    assert begun.losses[1] != pytest.approx(alone.losses[1])
    assert len(alone.losses) > 3
    assert after.losses == pytest.approx(alone.losses, rel=1e-3)  # the gradients are clipped twice


def test_a_rate_below_the_first_of_the_tests_own_costs_no_pass():
    few = FewRows(LossOfRows(lora(), COLLATOR), [rows_of()])
    _, gradients = try_rate(few, 0.0, 2)
    own = own_rate(few.losses.model, few.loss() - 0.1, gradients.absolute_sum)
    assert len(try_rate(few, own * 0.9, 2, floor=0.1)[0].losses) == 1
    few = FewRows(LossOfRows(lora(), COLLATOR), [rows_of()])
    assert len(try_rate(few, own * 1.1, 2, floor=0.1)[0].losses) == 3


def test_what_is_learned_gets_no_more_gradients():
    model = make_tiny_llama(64)
    few = FewRows(LossOfRows(model, COLLATOR), [rows_of()])
    assert few.backward(enough=100.0) == pytest.approx(few.loss())
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.trials
def test_a_random_base_cannot_tell_shuffled_answers_and_does_not_pretend_to():
    result = examined(make_tiny_llama(64), rows_of(16))
    assert abs(result.evidence.answers.z) < 5
    assert result.ok


def test_losses_by_shift_are_those_of_moved_labels():
    model, rows = make_tiny_llama(64).eval(), rows_of(3)
    losses = LossOfRows(model, COLLATOR)
    by_shift = losses.by_shift(rows)
    ids = torch.tensor([row["input_ids"] for row in rows])
    with torch.no_grad():
        predicted = model(ids).logits.log_softmax(-1)
    labels = torch.tensor([row["labels"] for row in rows])
    for column, shift in enumerate(SHIFTS):
        for number in range(3):
            # the position that predicts a label stands one before it; with labels moved, that many more
            places = [(p - 1 - shift, int(labels[number, p])) for p in range(12) if labels[number, p] != IGNORED]
            mean = -sum(float(predicted[number, at, label]) for at, label in places if at >= 0) / len(places)
            assert by_shift[number, column] == pytest.approx(mean, rel=1e-4)
    total = float(losses.total(rows).detach()) / 24
    assert total == pytest.approx(float(by_shift[:, 1].mean()), rel=1e-4)


def test_anybodys_collator_and_datasets(tokenizer):
    """The three lines of the docs: a `datasets.Dataset`, a collator of transformers that pads labels."""
    model = make_tiny_llama(len(tokenizer))
    rows = Dataset.from_list([{**row, "attention_mask": [1] * 10} for row in rows_of(answer=6)])
    result = examined(model, rows, DataCollatorForSeq2Seq(tokenizer))
    assert result.verdict.status == "passed", str(result)
    assert result.evidence.data.aligned[1] == 1.0


def test_losses_that_are_known_are_not_computed_again():
    rows = [{"input_ids": [*row["input_ids"], 9], "labels": [*row["labels"], IGNORED]} for row in rows_of()]
    losses = LossOfRows(base(), COLLATOR)
    own = losses.by_shift(rows)[:, SHIFTS.index(0)].tolist()
    assert answer_facts(losses, rows, 8, own[:3]).z == pytest.approx(answer_facts(losses, rows, 8).z, rel=1e-3)
    assert answer_facts(losses, rows, 8, [100.0] * 3).own > 30  # it would be seen


def test_prompts_are_asked_only_where_answers_do_not_tell():
    losses, rows = LossOfRows(base(), COLLATOR), rows_of()
    plain = answer_facts(losses, rows, 8)
    assert answer_facts(losses, rows, 8, enough=plain.own + 1).prompts == math.inf
    asked = answer_facts(losses, rows, 8, enough=plain.own / 2).prompts
    ids = [row["input_ids"][:4] for row in rows]  # nothing in common; the first token is not predicted
    prompts = [{"input_ids": each, "labels": each} for each in ids]
    assert asked == pytest.approx(losses.by_shift(prompts)[:, SHIFTS.index(0)].mean().item(), rel=1e-4)


def test_equal_prompts_and_equal_answers_are_compared_with_none():
    alike = [{"input_ids": [5, 6, 7, 8], "labels": [IGNORED, IGNORED, 7, 8]}] * 4
    assert answer_facts(LossOfRows(base(), COLLATOR), alike, 8) is None


def test_the_comparison_of_answers_by_hand():
    # Differences −2, −1, 0: mean −1, standard deviation 1, standard error 1/√3.
    facts = compare_answers([1.0, 2.0, 3.0], [3.0, 3.0, 3.0])
    assert (facts.rows, facts.own, facts.others) == (3, 2.0, 3.0)
    assert facts.wins == pytest.approx(2 / 3)
    assert facts.z == pytest.approx(-math.sqrt(3))
    assert compare_answers([1.0], [2.0]) is None
    assert compare_answers([1.0, math.nan], [2.0, 2.0]) is None
