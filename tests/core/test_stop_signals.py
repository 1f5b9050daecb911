from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from hf_recipes.core.stop_signals import StopListener, is_awaited, settled


@pytest.fixture(autouse=True)
def handlers_stay():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before
    assert not is_awaited()


def send(number):
    os.kill(os.getpid(), number)


def test_the_first_signal_is_the_reason_and_nothing_else_happens():
    listener = StopListener()
    assert listener.listen()
    assert is_awaited()
    assert (listener.reason, listener.terminated) == (None, None)
    send(signal.SIGUSR1)
    send(signal.SIGTERM)
    assert listener.reason == "SIGUSR1"
    assert listener.terminated <= time.monotonic()
    listener.close()


def test_one_that_acts_at_once_is_silent_while_another_awaits():
    calls = []
    early = StopListener(("SIGTERM",), at_once=calls.append)
    early.listen()
    assert not is_awaited()
    guard = StopListener()
    guard.listen()
    send(signal.SIGTERM)
    assert (guard.reason, early.reason, calls) == ("SIGTERM", "SIGTERM", [])
    guard.close()
    send(signal.SIGTERM)  # once more, while the end is written down
    assert calls == []
    early.close()


def test_what_came_too_early_is_not_lost():
    early = StopListener(("SIGTERM",), at_once=lambda reason: None)
    early.listen()
    send(signal.SIGTERM)
    guard = StopListener()
    guard.listen()
    assert guard.reason == "SIGTERM"
    assert guard.terminated == early.terminated
    guard.close()
    early.close()


def test_one_left_behind_by_an_exception_does_not_stop_the_next_training():
    left = StopListener()
    left.listen()
    send(signal.SIGTERM)
    following = StopListener()
    following.listen()
    assert following.reason is None
    send(signal.SIGTERM)
    assert following.reason == "SIGTERM"
    following.close()


@pytest.mark.parametrize("first_closed", [0, 1])
def test_in_whatever_order_two_are_given_up_the_first_handler_is_back(first_closed):
    calls = []
    two = [StopListener(("SIGTERM",), at_once=calls.append), StopListener(("SIGTERM",))]
    for listener in two:
        listener.listen()
    two[first_closed].close()
    assert settled(signal.getsignal(signal.SIGTERM), signal.SIGTERM) != signal.SIG_DFL
    two[1 - first_closed].close()
    assert settled(signal.getsignal(signal.SIGTERM), signal.SIGTERM) == signal.SIG_DFL


def test_only_the_main_thread_can_listen():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(StopListener().listen()))
    thread.start()
    thread.join()
    assert answers == [False]


def test_a_forked_child_ends_by_sigterm_and_by_nothing_else():
    listener = StopListener()
    listener.listen()
    child = os.fork()
    if child == 0:
        send(signal.SIGINT)
        send(signal.SIGUSR1)
        if listener.reason is None:
            send(signal.SIGTERM)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert listener.reason is None
    listener.close()
