"""The losses of a model that has learned nothing of its inputs."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_tiny_llama

from hf_recipes.callbacks.label_prior import (
    LABEL_PRIOR,
    UNIFORM,
    choices_of,
    dataset_prior,
    prior_of,
    reference_levels,
)


def test_two_even_classes_are_ln_2():
    prior = prior_of([0, 1] * 50)
    assert prior.entropy == pytest.approx(math.log(2))
    assert (prior.top_share, prior.labels) == (0.5, 100)


def test_ignored_labels_are_left_out():
    # Shares 3/4 and 1/4: 0.75 ln(4/3) + 0.25 ln 4.
    prior = prior_of([-100, 7, 7, -100, 7, 9])
    assert prior.entropy == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert (prior.top_label, prior.top_share, prior.labels) == (7, 0.75, 4)
    assert prior_of([-100]) is None


@given(st.lists(st.integers(0, 30), min_size=1))
def test_the_entropy_lies_between_nothing_and_that_of_even_shares(labels):
    prior = prior_of(labels)
    assert 0 <= prior.entropy <= math.log(len(set(labels))) + 1e-9
    assert prior == prior_of(sorted(labels, key=lambda label: (labels.index(label), label)))


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(2, 5))
def test_repeating_the_data_changes_no_share(labels, times):
    assert prior_of(labels * times).entropy == pytest.approx(prior_of(labels).entropy)


@pytest.mark.parametrize(
    "rows",
    [
        [{"labels": [-100, 1]}, {"labels": [2, 3]}],
        [{"labels": torch.tensor([-100, 1])}, {"labels": torch.tensor([2, 3])}],
        [{"label": 1}, {"label": 2}, {"label": 3}],
    ],
)
def test_rows_of_several_kinds_are_read(rows):
    assert dataset_prior(rows).entropy == pytest.approx(math.log(3))


@pytest.mark.parametrize("rows", [iter([{"labels": 1}]), [], [{"text": "a"}], [{"label": 0.5}], [[1, 2]]])
def test_what_has_no_labels_to_count_has_no_prior(rows):
    assert dataset_prior(rows) is None


def test_rows_are_picked_evenly():
    class Counted(list):
        seen = ()

        def __getitem__(self, index):
            self.seen = (*self.seen, index)
            return super().__getitem__(index)

    rows = Counted({"label": index % 2} for index in range(100))
    assert dataset_prior(rows, limit=5) is not None
    assert rows.seen == (0, 20, 40, 60, 80)


def test_reading_rows_leaves_the_random_numbers_alone():
    class Augmented(list):
        def __getitem__(self, index):
            return {"label": int(torch.randint(0, 2, ())) + random.randint(0, 1)}

    torch.manual_seed(3)
    random.seed(3)
    expected = (torch.rand(()), random.random())
    torch.manual_seed(3)
    random.seed(3)
    assert dataset_prior(Augmented([0] * 20)) is not None
    assert (torch.rand(()), random.random()) == expected


def test_levels_are_named():
    assert reference_levels(prior_of([0, 0, 1, 1]), 512) == pytest.approx(
        {LABEL_PRIOR: math.log(2), UNIFORM: math.log(512)}
    )
    assert reference_levels(prior_of([3, 3]), None) == {}  # one label only: its entropy is 0, the loss of a good model


def test_a_language_model_chooses_among_words_and_a_classifier_among_classes():
    from transformers import LlamaForSequenceClassification

    model = make_tiny_llama()
    assert choices_of(model) == 512
    model.config.num_labels = 3
    assert choices_of(LlamaForSequenceClassification(model.config)) == 3
    assert choices_of(torch.nn.Linear(1, 1)) is None


def test_a_model_with_an_adapter_is_looked_through():
    from peft import LoraConfig, get_peft_model

    assert choices_of(get_peft_model(make_tiny_llama(), LoraConfig(target_modules=["q_proj"]))) == 512
