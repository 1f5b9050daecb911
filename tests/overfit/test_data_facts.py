"""What rows say by themselves."""

from __future__ import annotations

import pytest

from hf_recipes.training.overfit.facts import broken_markers, data_facts
from hf_recipes.training.overfit.samples import cut_row, draw_rows, shortest_first, trained_tokens

IGNORED = -100


def row(prompt, answer):
    return {"input_ids": [*prompt, *answer], "labels": [IGNORED] * len(prompt) + list(answer)}


ROWS = [row([1, 2, 3], [4, 5, 6]), row([3, 2, 1], [7, 8, 9])]


def test_sound_rows():
    facts = data_facts(ROWS)
    assert (facts.rows, facts.untrained_rows, facts.supervised_share) == (2, 0, 0.5)
    assert facts.aligned == (0.0, 1.0, 0.0)
    assert (facts.floor, facts.contradicted, facts.answer_tokens) == (0.0, 0.0, 3.0)


@pytest.mark.parametrize(("offset", "aligned"), [(1, (0.0, 0.0, 1.0)), (-1, (1.0, 0.0, 0.0))])
def test_labels_one_place_off_are_seen_without_a_model(offset, aligned):
    ids = list(range(10, 30))
    labels = [*ids[1:], IGNORED] if offset == 1 else [IGNORED, *ids[:-1]]
    assert data_facts([{"input_ids": ids, "labels": labels}]).aligned == aligned


def test_padding_is_one_token_all_over():
    assert data_facts([{"input_ids": [2] * 8, "labels": [2] * 8}]).commonest_share == 1.0
    assert data_facts(ROWS).commonest_share < 0.3


def test_rows_without_a_label_are_counted():
    assert data_facts([*ROWS, row([1, 2], [])]).untrained_rows == 1


def test_markers_that_the_vocabulary_lacks():
    texts = {1: "<|start_header_id|>user", 2: "<|im_start|>user", 3: "compare a <|b|> c", 4: "[INST] hi [/INST]"}

    def found(*rows):
        return broken_markers(
            [{"input_ids": [each], "labels": [each]} for each in rows], lambda ids: texts[ids[0]], {"<|im_start|>"}
        )

    assert found(1, 1, 2) == ("<|start_header_id|>",)
    assert found(2, 2) == ()  # the vocabulary has it
    assert found(2, 2, 2, 3) == ()  # written about, in one row of four
    assert found(4, 4) == ()  # plain text in Llama 2's own template


def test_a_row_is_cut_after_so_many_trained_tokens():
    assert cut_row(row([1, 2, 3], [4, 5, 6, 7]), trained=2) == row([1, 2, 3], [4, 5])
    assert cut_row(row([1], [2]), trained=2) == row([1], [2])
    two_turns = {"input_ids": [1, 2, 3, 4], "labels": [IGNORED, 2, IGNORED, 4]}
    assert cut_row(two_turns, trained=1) == {"input_ids": [1, 2], "labels": [IGNORED, 2]}


def test_short_rows_first_untrained_ones_last():
    short, untrained, long = row([1], [2]), row([1], []), row([1, 2, 3], [4])
    assert shortest_first([long, untrained, short]) == [short, long, untrained]
    assert trained_tokens({"input_ids": [1, 2], "labels": [1, 2]}) == 1  # nothing stands before the first


def test_rows_are_drawn_once_each_and_of_a_stream_the_first():
    numbers = list(range(50))
    drawn = draw_rows(numbers, 20, seed=0)
    assert len(set(drawn)) == 20
    assert drawn == draw_rows(numbers, 20, seed=0)
    assert drawn != draw_rows(numbers, 20, seed=1)
    assert draw_rows(iter(numbers), 5, seed=0) == [0, 1, 2, 3, 4]
    assert sorted(draw_rows(numbers, 100, seed=0)) == numbers
