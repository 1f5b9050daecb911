from __future__ import annotations

from pathlib import Path

import pytest
from two_ranks import run_two_ranks

from hf_recipes.core.step_vote import StepVote

HERE = Path(__file__).resolve().parent


def test_alone_a_flag_is_heard_at_the_next_count_and_gone_in_the_next_run():
    vote = StepVote.open()
    assert vote.count(1) == {}
    vote.raise_flag("stop", "why")
    assert vote.count(1) == {}  # counted already
    assert vote.count(2) == {"stop": "why"}
    assert StepVote.open() is vote
    assert vote.count(2) == {}


@pytest.mark.slow
def test_c2_what_one_rank_wants_both_hear_at_the_same_step(tmp_path):
    first, second = run_two_ranks(HERE / "vote_on_two_ranks.py", tmp_path)
    assert first == second
    told = {"stop": "rank 1 was told to stop"}
    assert first["heard"] == {"1": {}, "2": {}, "3": told, "4": told, "5": told}
    assert first["again"] == {**told, "end": "rank 0"}
    assert first["same"]
    assert first["left"] == {}
