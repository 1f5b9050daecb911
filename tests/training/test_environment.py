from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.training.environment import check_world_size, threads_per_rank


@pytest.mark.parametrize(("asked", "there"), [(None, 1), (None, 4), (2, 2)])
def test_the_world_asked_for_is_fine(asked, there):
    check_world_size(asked, there)


def test_another_world_than_asked_for_names_both_and_the_cure():
    with pytest.raises(UserError, match="2 processes were asked for, 1 came up: start with `hf-recipes sft"):
        check_world_size(2, 1)


def test_a_rank_leaves_when_its_parent_was_killed():
    parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = (
        "import time; from hf_recipes.training.environment import leave_with_parent; "
        f"leave_with_parent({parent.pid}); time.sleep(60)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code])
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(4)
    parent.kill()
    parent.wait()
    assert rank.wait(20) == 1


@given(st.integers(1, 256), st.integers(1, 64))
def test_t10_ranks_share_the_cores_and_none_gets_nothing(cores, ranks):
    threads = threads_per_rank(cores, ranks)
    assert threads >= 1
    assert threads * ranks <= max(cores, ranks)
