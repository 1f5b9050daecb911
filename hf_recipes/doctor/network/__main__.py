"""`accelerate launch -m hf_recipes.doctor.network …`: measure the network between the ranks of any launcher."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_json
from hf_recipes.core.log import show_on_console
from hf_recipes.doctor.network.curve import sizes
from hf_recipes.doctor.network.measured import Measured
from hf_recipes.doctor.network.options import Measuring, add_measuring, add_strategy, chosen, measuring
from hf_recipes.doctor.network.outcome import conclude, show
from hf_recipes.doctor.network.report import as_values
from hf_recipes.doctor.network.roll_call import Place, roll_call

_TIMEOUT = timedelta(minutes=5)  # of one collective


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on every rank; returns the exit code: 1 where the strategy given cannot live with the network."""
    parser = argparse.ArgumentParser(prog="python -m hf_recipes.doctor.network", description=__doc__)
    add_measuring(parser)
    add_strategy(parser)
    options = parser.parse_args(arguments)
    place = Place.of()
    show_on_console(place.rank if place else 0)
    try:
        return _run(options, place)
    except UserError as error:
        if place is None or place.speaks:
            print(f"hf-recipes: {error}", file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace, place: Place | None) -> int:
    how, choice = measuring(options), chosen(options)
    if place is None or place.ranks < 2:
        raise UserError(
            "One process has no network: start several (`hf-recipes doctor --network --num_processes 2`, or under a "
            "launcher)."
        )
    roll_call(place, how.patience_seconds)
    measured = _measure(how)
    if place.rank:
        return 0
    if options.output:
        write_json(Path(options.output), as_values(measured))
    return show(conclude(measured, choice), as_json=options.json)


def _measure(how: Measuring) -> Measured:
    import torch
    import torch.distributed as dist

    from hf_recipes.doctor.network.measure import measure_network

    on_gpus = torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "false").lower() != "true"
    if on_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=_TIMEOUT)
    try:
        return measure_network(sizes(largest=how.largest_bytes))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
