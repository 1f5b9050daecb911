"""Do the watchers see faults, how soon, and are they silent on healthy runs?

    python benchmarks/watching_trials.py [--seeds N] [--one-rank]

Real runs of tiny models on tasks that can be learned (tests/injection): each fault begins at a known step; the delay is
that of the first alarm that names it. Healthy runs of many kinds must raise none. Exit code 1 when a fault is missed or
late, or a healthy run raises an alarm.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "injection")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each trial (default: 1)")
    parser.add_argument("--one-rank", action="store_true", help="leave out the trials on two processes")
    options = parser.parse_args()

    from fault_runs import FAULTS, FAULTS_OF_TWO_RANKS
    from healthy_runs import HEALTHY, HEALTHY_OF_TWO_RANKS
    from trials import false_alarms, here, on_two_ranks, try_fault

    seeds, bad = range(options.seeds), 0
    groups = [(here, FAULTS, HEALTHY)]
    if not options.one_rank:
        groups.append((on_two_ranks, FAULTS_OF_TWO_RANKS, HEALTHY_OF_TWO_RANKS))
    say("| fault | found by | delay in steps | bound |")
    say("|---|---|---|---|")
    for execute, faults, _ in groups:
        for fault in faults:
            outcomes = [try_fault(fault, seed, execute) for seed in seeds]
            delays = [outcome.delay for outcome in outcomes]
            bad += sum(delay is None or delay > fault.within for delay in delays)
            told = sorted({": ".join(who) for outcome in outcomes for _, *who in outcome.found})
            shown = ", ".join("not found" if delay is None else str(delay) for delay in delays)
            say(f"| {fault.name} | {'; '.join(told)} | {shown} | {fault.within} |")
    count, rung = 0, 0
    for execute, _, healthy in groups:
        for run in healthy:
            for seed in seeds:
                alarms = false_alarms(run, seed, execute)
                count, rung = count + 1, rung + bool(alarms)
                if alarms:
                    say(f"false alarm in '{run.name}', seed {seed}: {alarms}")
    say(f"{count} healthy runs, {rung} of them with an alarm.")
    return 1 if bad or rung else 0


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
