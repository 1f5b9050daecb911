from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.training import room_for_ranks
from hf_recipes.training.room_for_ranks import check_room_for_ranks


def test_more_processes_than_memory_holds_are_refused_before_the_first(monkeypatch):
    monkeypatch.setattr(room_for_ranks, "free_memory_bytes", lambda: 4 * 2**30)
    check_room_for_ranks(10)
    with pytest.raises(UserError, match=r"11 processes cannot start on this machine.* 4.0 GiB are free: give 10"):
        check_room_for_ranks(11)


def test_one_process_may_always_try(monkeypatch):
    monkeypatch.setattr(room_for_ranks, "free_memory_bytes", lambda: 0)
    check_room_for_ranks(1)
