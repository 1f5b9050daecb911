"""What is done to a checkpoint, as functions of its directory once their other arguments are given."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from faults import damage

MARKS = ("manifest.json", "verified.json")
MARK_DAMAGES = ("absent", "cut", "all zero", *(f"a flipped bit ({number})" for number in range(5)))


def files_of(checkpoint: Path) -> list[str]:
    """What a fault may be put into; a model card is for people to write in, and its change is none."""
    return sorted(path.name for path in checkpoint.iterdir() if path.is_file() and path.name != "README.md")


def weights_of(checkpoint: Path) -> list[str]:
    return [name for name in files_of(checkpoint) if name.endswith(".safetensors")]


def in_file(name: str, change: Callable[[Path], None], checkpoint: Path) -> None:
    change(checkpoint / name)


def remove(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()


def zero_all(name: str, checkpoint: Path) -> None:
    damage.zero(checkpoint / name, 0, (checkpoint / name).stat().st_size)


def exchange_files(first: str, second: str, checkpoint: Path) -> None:
    (checkpoint / first).rename(checkpoint / "moving")
    (checkpoint / second).rename(checkpoint / first)
    (checkpoint / "moving").rename(checkpoint / second)


def take_from(name: str, step: int, checkpoint: Path) -> None:
    shutil.copy2(checkpoint.parent / f"checkpoint-{step}" / name, checkpoint / name)


def take_all_from(step: int, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.parent / f"checkpoint-{step}", checkpoint)


def copy_within(name: str, to: str, checkpoint: Path) -> None:
    shutil.copy2(checkpoint / name, checkpoint / to)


def stale_index(index: str, weights: list[str], moves: str, checkpoint: Path) -> None:
    places = {tensor.name: name for name in weights for tensor in damage.tensor_ranges(checkpoint / name)}
    victim = sorted(places)[0]
    if moves == "of a tensor that is not there":
        places["nobody.weight"] = weights[0]
    elif moves == "to the wrong shard" and len(weights) > 1:
        places[victim] = next(name for name in weights if name != places[victim])
    else:
        places[victim] = weights[0].replace(".safetensors", "-of-another.safetensors")
    (checkpoint / index).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def lose_the_scaler(checkpoint: Path) -> None:
    from hf_recipes.checkpoints.manifest import write_manifest

    torch.save({"scale": 65536.0, "growth_factor": 2.0}, checkpoint / "scaler.pt")
    write_manifest(checkpoint)
    (checkpoint / "scaler.pt").unlink()


def lose_power(name: str, begin: int, size: int, manifest: bool, checkpoint: Path) -> None:
    damage.zero(checkpoint / name, begin, size)
    if not manifest:
        for mark in MARKS:
            (checkpoint / mark).unlink()


def flip_in_json(file: Path, chance: random.Random) -> tuple[int, int]:
    """A (byte, bit) of a JSON file whose flip changes what it says."""
    size = file.stat().st_size
    while True:
        byte, bit = chance.randrange(size), chance.randrange(8)
        if damage.flip_matters(file, byte, bit):
            return byte, bit


def spoil_mark(way: str, seed: int, checkpoint: Path) -> None:
    """Damage verified.json in one of `MARK_DAMAGES`."""
    mark, chance = checkpoint / "verified.json", random.Random(seed)
    if way == "absent":
        mark.unlink()
    elif way == "cut":
        damage.truncate(mark, chance.randrange(mark.stat().st_size))
    elif way == "all zero":
        zero_all(mark.name, checkpoint)
    else:
        damage.flip(mark, *flip_in_json(mark, chance))


def write_nan(mark_damage: str, seed: int, checkpoint: Path) -> None:
    """Leave what a bad save leaves that was seen: NaN in every copy of the truth. Then damage the mark that says so."""
    from hf_recipes.checkpoints.manifest import write_manifest, write_verified

    name = weights_of(checkpoint)[0]
    tensor = damage.tensor_ranges(checkpoint / name)[0]
    damage.put_value(checkpoint / name, tensor, float("nan"))
    write_manifest(checkpoint)
    write_verified(checkpoint, level="content", ok=False, seconds=0.1, problems=[f"{name}: holds NaN"])
    spoil_mark(mark_damage, seed, checkpoint)
