"""Saves of which the disk got other bytes than memory held, before anybody took a hash of them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from faults import damage
from faults.catalogue import alike
from faults.changes import MARK_DAMAGES, spoil_mark, weights_of
from faults.children import call
from faults.going_on import LIMIT, STEPS, judge_and_go_on
from faults.tally import UNDETECTED
from faults.tiny_kinds import Kind, Place, run
from transformers import TrainerCallback

from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.core.run_directory import checkpoint_step


class Spoil(TrainerCallback):
    """Changes a checkpoint between the Trainer's save and the keeper's look at it."""

    def __init__(self, step: int, change: Callable[[Path, random.Random], None], seed: int) -> None:
        self.step = step
        self.change = change
        self.seed = seed

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.change(Path(args.output_dir) / f"checkpoint-{self.step}", random.Random(self.seed))


def wrong_save(
    kind: Kind,
    change: Callable[[Path, random.Random], None],
    place: Place,
    reference: Place,
    chance: random.Random,
) -> tuple[str, str]:
    """The disk got other bytes than memory held, before any hash was taken: the run stops, the one before is chosen."""
    step = chance.randint(2, STEPS - 1)
    codes = run(kind, place, steps=STEPS, limit=LIMIT, before=[Spoil(step, change, chance.randrange(2**32))])
    if codes == [0]:
        return UNDETECTED, f"the run went on over a bad checkpoint-{step}"
    choice = call(partial(last_good_checkpoint, place.output))
    if choice.path is None or checkpoint_step(choice.path) != step - 1:
        return UNDETECTED, f"checkpoint-{step} was spoiled, {choice.path} is chosen: {choice.skipped}"
    spoiled = place.output / f"checkpoint-{step}"
    if taken := call(partial(_taken_without_its_mark, spoiled, chance.randrange(2**32))):
        return UNDETECTED, f"{spoiled.name} was spoiled, and is chosen when its verified.json is {taken}"
    return judge_and_go_on(kind, place, reference)


def _taken_without_its_mark(spoiled: Path, seed: int) -> list[str]:
    """How verified.json, the mark that it is bad, must be damaged to make a bad checkpoint look good."""
    mark = spoiled / "verified.json"
    content = mark.read_bytes() if mark.exists() else b""
    taken = []
    for way in MARK_DAMAGES if content else ():
        spoil_mark(way, seed, spoiled)
        if last_good_checkpoint(spoiled.parent).path == spoiled:
            taken.append(way)
        mark.write_bytes(content)
    return taken


def _any_tensor(checkpoint: Path, chance: random.Random) -> tuple[Path, damage.Range]:
    file = checkpoint / chance.choice(weights_of(checkpoint))
    return file, chance.choice(damage.tensor_ranges(file))


def _flip_in_weights(checkpoint: Path, chance: random.Random) -> None:
    file, tensor = _any_tensor(checkpoint, chance)
    damage.flip(file, chance.randrange(tensor.start, tensor.end), chance.randrange(8))


def _flip_in_torch_file(name: str, checkpoint: Path, chance: random.Random) -> None:
    _, start, end = damage.record_ranges(checkpoint / name)[0]
    damage.flip(checkpoint / name, chance.randrange(start, end), chance.randrange(8))


def _zero_a_tensor(checkpoint: Path, chance: random.Random) -> None:
    file, tensor = max(
        (
            (checkpoint / name, tensor)
            for name in weights_of(checkpoint)
            for tensor in damage.tensor_ranges(checkpoint / name)
        ),
        key=lambda found: found[1].end - found[1].start,
    )
    damage.zero(file, tensor.start, tensor.end)


def _swap_two_tensors(checkpoint: Path, chance: random.Random) -> None:
    file = checkpoint / weights_of(checkpoint)[0]
    first, second = alike(file, chance)[0]
    damage.exchange(file, (first.start, first.end), (second.start, second.end))


def _swap_two_values(checkpoint: Path, chance: random.Random) -> None:
    file, tensor = _any_tensor(checkpoint, chance)
    content = file.read_bytes()
    places = [
        place
        for place in range(tensor.start, tensor.end, 4)
        if content[place : place + 4] != content[tensor.start : tensor.start + 4]
    ]
    if not places:  # a norm that is all ones: there is nothing to swap
        return _swap_two_values(checkpoint, chance)
    place = chance.choice(places)
    return damage.exchange(file, (tensor.start, tensor.start + 4), (place, place + 4))


def _older_weights(checkpoint: Path, chance: random.Random) -> None:
    name = weights_of(checkpoint)[0]
    step = checkpoint_step(checkpoint) - 1
    shutil.copy2(checkpoint.parent / f"checkpoint-{step}" / name, checkpoint / name)


def _cut_file(name: str, checkpoint: Path, chance: random.Random) -> None:
    file = checkpoint / (name or weights_of(checkpoint)[0])
    damage.truncate(file, chance.randrange(file.stat().st_size - 2))


def _lose_file(name: str, checkpoint: Path, chance: random.Random) -> None:
    (checkpoint / (name or weights_of(checkpoint)[-1])).unlink()


def _put_nan(checkpoint: Path, chance: random.Random) -> None:
    file, tensor = _any_tensor(checkpoint, chance)
    damage.put_value(file, tensor, float("nan"))


WRONG_SAVES: dict[str, Callable[[Path, random.Random], None]] = {
    "one bit in a tensor": _flip_in_weights,
    "one bit in optimizer.pt": partial(_flip_in_torch_file, "optimizer.pt"),
    "one bit in rng_state.pth": partial(_flip_in_torch_file, "rng_state.pth"),
    "one bit in scheduler.pt": partial(_flip_in_torch_file, "scheduler.pt"),
    "a tensor all zero": _zero_a_tensor,
    "the values of two tensors swapped": _swap_two_tensors,
    "two values of a tensor swapped": _swap_two_values,
    "weights of the step before": _older_weights,
    "weights cut": partial(_cut_file, ""),
    "optimizer.pt cut": partial(_cut_file, "optimizer.pt"),
    "trainer_state.json cut": partial(_cut_file, "trainer_state.json"),
    "weights missing": partial(_lose_file, ""),
    "optimizer.pt missing": partial(_lose_file, "optimizer.pt"),
    "scheduler.pt missing": partial(_lose_file, "scheduler.pt"),
    "NaN in a tensor": _put_nan,
}
