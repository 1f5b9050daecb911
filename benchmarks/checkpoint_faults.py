"""Does any fault lead to a corrupt checkpoint being used, or to verified work being lost?

    python benchmarks/checkpoint_faults.py [--seed N] [--only KIND …] [--kills 200] [--part 1.0] [--json FILE]

Real runs of tiny models (tests/checkpoints/faults) are killed while they save, meet full disks, rivals and wrong bytes;
their checkpoints are cut, flipped, zeroed, mixed up. After each fault a good checkpoint must be chosen, or a resume
refused in one sentence; a run that goes on must end as if it had never been stopped, bit for bit; and a good checkpoint
must never be refused. Prints a Markdown table. Exit code 1 when any of the counts of failures is not zero.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "checkpoints")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of everything left to chance (default: 1)")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds whose name in the table holds one of these")
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs in all (default: 200)")
    parser.add_argument("--part", type=float, default=1.0, help="the share of all other faults to try (default: 1)")
    parser.add_argument("--steps", type=int, default=24, help="steps of the runs that are killed (default: 24)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every outcome there")
    options = parser.parse_args()

    preload()
    from faults.all_trials import outcomes
    from faults.tally import plain, table

    def wanted(kind: str) -> bool:
        return not options.only or any(part in kind for part in options.only)

    done = []
    work = Path(tempfile.mkdtemp())  # children would remove a TemporaryDirectory when they exit
    try:
        for outcome in outcomes(options.seed, options.kills, options.part, options.steps, work, wanted):
            done.append(outcome)
            if outcome.bad:
                tell(f"{outcome.verdict}: {outcome.kind}: {outcome.fault}: {outcome.said}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(table(done))
    if options.json:
        options.json.write_text(json.dumps(plain(done), indent=1) + "\n")
    return 1 if any(outcome.bad for outcome in done) else 0


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def preload() -> None:
    """Import here what the forked children would each import anew, and start no thread."""
    import contextlib

    import torch

    torch.set_num_threads(1)
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("hf_recipes").setLevel(logging.ERROR)
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer  # noqa: F401 - imported when they are named

    with contextlib.suppress(ImportError):
        import deepspeed  # noqa: F401 - the Trainer does


if __name__ == "__main__":
    sys.exit(main())
