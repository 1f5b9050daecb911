"""The table of known messages: each is recognised by its real text, alone, and says what it means and what to do."""

from __future__ import annotations

import io
import re

import pytest

from hf_recipes.doctor.log.diagnosis import cause_of, cure_of, diagnose_log
from hf_recipes.doctor.log.signature import ORDER, fill
from hf_recipes.doctor.log.signatures import SIGNATURES


def diagnosed(text: str):
    return diagnose_log(io.BytesIO(text.encode()))


def test_there_are_more_than_the_promised_forty():
    assert len(SIGNATURES) > 40


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_example_is_recognised_alone(name):
    assert [other for other, one in SIGNATURES.items() if one.match(SIGNATURES[name].example) is not None] == [name]


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_log_with_it_names_it(name):
    found = diagnosed(f"some words before\n{SIGNATURES[name].example}\nand after\n")
    if SIGNATURES[name].kind == "notice":
        assert ([hit.name for hit in found.notices], found.root, found.exit_code) == ([name], None, 0)
    else:
        assert (found.root.name, found.root.line, found.exit_code) == (name, 2, 1)


@pytest.mark.parametrize("name", SIGNATURES)
def test_it_says_what_it_means_and_what_to_do(name):
    one = SIGNATURES[name]
    assert one.kind in ORDER
    assert one.seen
    assert one.cause.endswith(".")
    assert not one.cure.endswith(".")
    groups = set(re.findall(r"<([a-z_]+)>", one.cause + one.cure))
    assert groups <= set(re.compile(one.pattern).groupindex)
    if one.kind != "notice":
        hit = diagnosed(one.example).root
        assert not re.search(r"<[a-z_]+>", cause_of(hit) + cure_of(hit))
        assert "?" not in cause_of(hit)
        assert cure_of(hit)


def test_needles_are_long_enough_to_be_rare():
    assert min(len(needle) for one in SIGNATURES.values() for needle in one.needles) >= 5


def test_a_group_without_a_value_is_a_question_mark():
    assert fill("<a> of <b>", {"a": "1"}) == "1 of ?"


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 1.2, 'grad_norm': 0.4, 'learning_rate': 2e-05, 'epoch': 0.1}",
        "INFO: no space left between words, nor on any device",
        "The model ran out of memory of the conversation in turn three",
        "Loading checkpoint shards: 100%|██████████| 4/4 [00:03<00:00,  1.2it/s]",
        "warning: connection closed by the user",
    ],
)
def test_words_of_other_things_are_not_taken_for_faults(line):
    found = diagnosed(line)
    assert (found.root, found.notices, found.exit_code) == (None, (), 0)
