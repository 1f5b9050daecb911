"""Who has not come is named, by every rank that has."""

from __future__ import annotations

import socket
import threading

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network import roll_call as module
from hf_recipes.doctor.network.roll_call import Place, absent_sentence, find_first, machine_roll_call, roll_call


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@pytest.fixture(autouse=True)
def no_store_kept(monkeypatch):
    monkeypatch.setattr(module, "_kept", [])


def called(ranks, local, patience, *, there, call_the_roll=roll_call, port=None):
    """What each of `there` hears, by rank; None: all have come."""
    port, heard = port or free_port(), {}

    def call(rank):
        try:
            heard[rank] = call_the_roll(Place(rank, ranks, local, "127.0.0.1", port), patience)
        except UserError as error:
            heard[rank] = str(error)

    threads = [threading.Thread(target=call, args=(rank,)) for rank in there]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return heard


def test_all_have_come():
    assert called(4, 2, 30, there=range(4)) == dict.fromkeys(range(4))


def test_a_machine_that_does_not_come_is_named_by_all_that_have():
    heard = called(4, 2, 1.5, there=[0, 1])
    assert len(heard) == 2
    for text in heard.values():
        assert text.startswith("Machine 1 (ranks 2 and 3) did not come within ")
        assert socket.gethostname() in text


def test_machines_call_the_roll_for_their_ranks_and_leave_the_port():
    port = free_port()
    for _ in range(2):  # the port is free again
        heard = called(4, 2, 30, there=[0, 2], call_the_roll=machine_roll_call, port=port)
        assert heard == {0: None, 2: None}
    (text,) = called(4, 2, 1.0, there=[0], call_the_roll=machine_roll_call).values()
    assert text.startswith("Machine 1 (ranks 2 and 3) did not come within ")


def test_a_first_machine_that_does_not_answer_is_named():
    (text,) = called(4, 2, 1.0, there=[2]).values()
    assert text.startswith("Nobody answers at 127.0.0.1:")
    assert "--machine_rank 0" in text


@pytest.mark.parametrize(
    ("absent", "words"),
    [([2, 3], "Machine 1 (ranks 2 and 3)"), ([2, 3, 4, 5], "Machines 1 and 2 (ranks"), ([3], "Rank 3 did")],
)
def test_machines_are_named_where_they_are_absent_whole(absent, words):
    assert absent_sentence(absent, ["node0"], Place(0, 6, 2, "node0", 29500), 60).startswith(words)


def test_a_taken_port_is_said():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} of this machine cannot be used"):
            roll_call(Place(0, 2, 1, "127.0.0.1", port), 5)


def test_a_place_is_what_the_launcher_says():
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert Place.of(given) == Place(3, 4, 2, "node0", 29500)
    assert Place.of({**given, "MASTER_PORT": "none"}) is None
    assert Place.of({}) is None


@pytest.mark.parametrize("name", ["no.such.host.invalid", "two..dots", "x" * 70, "a b", "\0"])
def test_a_first_machine_that_has_no_address_is_refused_before_torch_asks_for_it(name, capfd):
    """RFC 2606 keeps .invalid free; a label is of 1 to 63 letters (RFC 1035), which Python's codec refuses itself."""
    for call_the_roll in (roll_call, machine_roll_call):
        with pytest.raises(UserError, match="has no address on"):
            call_the_roll(Place(0, 4, 2, name, 29500), 30)
    assert "c10d" not in capfd.readouterr().err


def test_other_machines_ask_for_as_long_as_they_wait(monkeypatch):
    """A cluster's name service may learn of the first machine after the others have started."""
    known = iter([False, False, True])
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "_has_address", lambda name: next(known))
    find_first("node0", is_first=False, patience_seconds=30)
    assert list(known) == []
    with pytest.raises(UserError, match=r"has no address on .* for 0 s"):
        monkeypatch.setattr(module, "_has_address", lambda name: False)
        find_first("node0", is_first=False, patience_seconds=0.05)
