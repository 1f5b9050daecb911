"""A sample of the trials in benchmarks/watching_trials.py; all of them with ``-m trials``, as `.ci/full` does."""

from __future__ import annotations

import pytest
from fault_runs import FAULTS, FAULTS_OF_TWO_RANKS
from healthy_runs import HEALTHY, HEALTHY_OF_TWO_RANKS
from trials import false_alarms, here, on_two_ranks, try_fault

# Every sixth fault and one healthy run in forty; slow ones and those of two ranks are tested in files of their own.
SLOW = ("steps that become slower", "data that come too slowly")
# What the clock tells: a neighbour on the machine really makes a healthy run slower. The benchmark counts it too.
TIMED = "throughput"


def each(trials, names, sampled):
    return [
        pytest.param(trial, id=name, marks=() if index in sampled else pytest.mark.trials)
        for index, (trial, name) in enumerate(zip(trials, names, strict=True))
    ]


def fault_names(faults):
    return [fault.name for fault in faults]


def of_faults():
    quick = {index for index, fault in enumerate(FAULTS) if index % 6 == 0 and fault.name not in SLOW}
    return each(FAULTS, fault_names(FAULTS), quick)


def of_healthy():
    return each(HEALTHY, [run.name for run in HEALTHY], set(range(0, len(HEALTHY), 40)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", of_faults())
def test_the_fault_is_found_in_time(fault):
    outcome = try_fault(fault, 0, here)
    assert outcome.delay is not None, outcome.alarms
    assert outcome.delay <= fault.within, outcome.alarms


@pytest.mark.slow
@pytest.mark.parametrize("run", of_healthy())
def test_a_healthy_run_raises_no_alarm(run):
    assert [told for told in false_alarms(run, 0, here) if told[1] != TIMED] == []


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("fault", each(FAULTS_OF_TWO_RANKS, fault_names(FAULTS_OF_TWO_RANKS), set()))
def test_a_fault_on_one_of_two_ranks_is_found_in_time(fault):
    outcome = try_fault(fault, 0, on_two_ranks)
    assert outcome.delay is not None, outcome.alarms
    assert outcome.delay <= fault.within, outcome.alarms


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("run", each(HEALTHY_OF_TWO_RANKS, [run.name for run in HEALTHY_OF_TWO_RANKS], set()))
def test_two_healthy_ranks_raise_no_alarm(run):
    assert false_alarms(run, 0, on_two_ranks) == []
