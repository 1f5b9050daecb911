"""How long one waits for a command to answer: `import hf_recipes`, every `--help`, and the same of other tools.

    python benchmarks/startup.py [--rounds 5] [--rival "NAME=COMMAND …" …]

Whole processes in turn, in every round each once; medians. Of `import hf_recipes` the time of an empty interpreter is
taken off. `trl --help` and `accelerate --help` are those of this environment; others are given by --rival, such as
`--rival "LLaMA-Factory=/path/to/llamafactory-cli help"`. Exit code 1 where the import takes 50 ms or a help 0.2 s times
the pace of this machine (an empty interpreter's time over 20 ms) or more.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from hf_recipes.cli.main import VERBS

IMPORT_LIMIT, HELP_LIMIT = 0.050, 0.200
USUAL_START = 0.020  # an empty interpreter on a machine of today
SCRIPTS = Path(sysconfig.get_path("scripts"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    empty, imported = [sys.executable, "-c", "pass"], [sys.executable, "-c", "import hf_recipes"]
    helps = {verb: [str(SCRIPTS / "hf-recipes"), verb, "--help"] for verb in VERBS}
    rivals = {f"{name} --help": [str(SCRIPTS / name), "--help"] for name in ("trl", "accelerate")}
    rivals |= {name: shlex.split(command) for name, _, command in (rival.partition("=") for rival in options.rival)}
    commands = {"empty": empty, "import": imported, **helps, **rivals}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds + 1):
        for name, command in commands.items():
            taken[name].append(seconds(command))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}  # the first one fills the cache
    sys.exit(tell(medians, list(rivals)))


def seconds(command: list[str]) -> float:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def tell(medians: dict[str, float], rivals: list[str]) -> int:
    """Print the table; 1 where ours is too slow."""
    helps = {verb: medians[verb] for verb in VERBS}
    slowest = max(helps, key=helps.__getitem__)
    imported = medians["import"] - medians["empty"]
    print("| | ms |\n| --- | ---: |")
    rows = {
        "an empty interpreter": medians["empty"],
        "`import hf_recipes`, beyond it": imported,
        f"`hf-recipes VERB --help`, median of {len(helps)}": statistics.median(helps.values()),
        f"the slowest of them, `{slowest} --help`": helps[slowest],
        **{f"`{rival}`": medians[rival] for rival in rivals},
    }
    for name, value in rows.items():
        print(f"| {name} | {1000 * value:,.0f} |")
    pace = max(1.0, medians["empty"] / USUAL_START)
    return int(imported >= IMPORT_LIMIT * pace or helps[slowest] >= HELP_LIMIT * pace)


if __name__ == "__main__":
    main()
