"""Whether a checkpoint holds all that the Trainer needs to continue exactly. It would not say what it does not find."""

from __future__ import annotations

import pickletools
import re
from pathlib import Path
from typing import Literal

from hf_recipes.checkpoints.manifest import DamagedManifest, read_manifest
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.run_directory import checkpoint_step

OptimizerForm = Literal["plain", "fsdp", "zero", "zero3", "pipeline"]

_RANDOM_STATE = re.compile(r"^rng_state_(\d+)\.pth$")
_WEIGHTS = re.compile(r"^((adapter_)?model[^/]*\.safetensors|(pytorch|adapter)_model[^/]*\.bin)$")
_ZERO_PART = re.compile(r"^(.*zero_pp_rank_)(\d+)(_mp_rank_00_(?:optim|model)_states\.pt)$")
_TAG = re.compile(r"^[\w-]+$")


def missing_for_resume(checkpoint: Path, ranks: int | None = None) -> list[str]:
    """Names of what a resumed run needs and does not find here, whoever wrote it: the Trainer on one rank or several,
    FSDP or DeepSpeed. Nothing is unpickled.

    Args:
        ranks: how many processes wrote it; None: see `ranks_of`.
    """
    names = {path.name for path in checkpoint.iterdir()}
    ranks = ranks or ranks_of(checkpoint)
    absent = [] if _trainer_state_fits(checkpoint) else ["a trainer_state.json of its own step"]
    if is_deepspeed(checkpoint):
        absent += _missing_for_deepspeed(checkpoint, ranks)
    else:
        absent += _missing_for_trainer(checkpoint, names)
    return absent + _missing_random_states(names, ranks)


def is_deepspeed(checkpoint: Path) -> bool:
    """Whether DeepSpeed wrote its own files here, which the Trainer then reads instead of optimizer.pt."""
    return (checkpoint / "latest").is_file() or any(path.is_dir() for path in checkpoint.glob("global_step*"))


def is_zero_sharded(checkpoint: Path) -> bool:
    """Whether the optimizer lies here in ZeRO's parts, one a rank, which only as many ranks can take up again."""
    return any(checkpoint.glob("*/*zero_pp_rank_*_optim_states.pt"))


def optimizer_form(checkpoint: Path) -> OptimizerForm:
    """In whose form the optimizer lies here: of the Trainer itself (one process, DDP), of FSDP, of ZeRO-1 and ZeRO-2
    (the same), of ZeRO-3, or of a pipeline, which has FSDP's files but plain weights. None of them can read
    another's."""
    if is_deepspeed(checkpoint):
        return "zero3" if any(checkpoint.glob("*/*zero_pp_rank_*_model_states.pt")) else "zero"
    if (checkpoint / "optimizer.bin").is_file():
        return "fsdp"
    if any(path.is_dir() for path in checkpoint.glob("optimizer_*")):
        return "fsdp" if any(checkpoint.glob("pytorch_model_fsdp*")) else "pipeline"
    return "plain"


def ranks_of(checkpoint: Path) -> int | None:
    """How many processes wrote a checkpoint: by its manifest; without one, by the random states that are there."""
    try:
        manifest = read_manifest(checkpoint)
    except DamagedManifest:
        manifest = None
    if manifest:
        return manifest.world_size
    if (checkpoint / "rng_state.pth").is_file():
        return 1
    found = [int(match[1]) for path in checkpoint.iterdir() if (match := _RANDOM_STATE.match(path.name))]
    return max(2, 1 + max(found)) if found else None


def _trainer_state_fits(checkpoint: Path) -> bool:
    try:
        step = read_json(checkpoint / "trainer_state.json")["global_step"]
        return checkpoint_step(checkpoint) == step
    except UserError:  # a checkpoint under a name of the user's
        return isinstance(step, int)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _missing_for_trainer(checkpoint: Path, names: set[str]) -> list[str]:
    absent = []
    shards = sorted(name for name in names if name.startswith("pytorch_model_fsdp_"))
    adapters = any(checkpoint.glob("*/adapter_model.*"))  # one in a folder of its own
    if not shards and not adapters and not any(_WEIGHTS.match(name) for name in names):
        absent.append("weights")
    states = sorted(name for name in names if re.match(r"^optimizer_\d+$", name))
    for folder in [*shards, *states]:
        absent += _missing_shards(checkpoint / folder)
    if not states and not {"optimizer.pt", "optimizer.bin"} & names:
        absent.append("optimizer.pt")
    if "scheduler.pt" not in names:
        absent.append("scheduler.pt")
    return absent


def _missing_shards(folder: Path) -> list[str]:
    """Of torch's distributed checkpoints (FSDP's sharded states): the files that `.metadata` places tensors in."""
    try:
        operations = pickletools.genops((folder / ".metadata").read_bytes())
        wanted = {value for _, value, _ in operations if isinstance(value, str) and value.endswith(".distcp")}
    except (OSError, ValueError, IndexError):
        return [f"{folder.name}/.metadata"]
    return [f"{folder.name}/{name}" for name in sorted(wanted) if not (folder / Path(name).name).is_file()]


def _missing_for_deepspeed(checkpoint: Path, ranks: int | None) -> list[str]:
    try:
        tag = (checkpoint / "latest").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ["latest"]
    if not _TAG.match(tag) or not (checkpoint / tag).is_dir():
        return [f"the folder that its file 'latest' names ({tag[:40]})"]
    names = {path.name for path in (checkpoint / tag).iterdir()}
    absent = [] if any(name.endswith("model_states.pt") for name in names) else [f"{tag}/mp_rank_00_model_states.pt"]
    parts = [match for name in names if (match := _ZERO_PART.match(name))]
    if not parts:
        return absent
    # Tensor parallel ranks (mp_rank_01 …) share an optimizer: then there are fewer parts than ranks.
    all_ranks = 1 if any("_mp_rank_01_" in name for name in names) else ranks or 1
    ranks = max(all_ranks, *(1 + int(part[2]) for part in parts))
    wanted = {f"{part[1]}{rank}{part[3]}" for part in parts for rank in range(ranks)}
    if not any("_optim_states" in name for name in names):
        absent.append(f"{tag}/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return absent + [f"{tag}/{name}" for name in sorted(wanted - names)]


def _missing_random_states(names: set[str], ranks: int | None) -> list[str]:
    if ranks == 1:
        return [] if "rng_state.pth" in names else ["rng_state.pth"]
    # Without a manifest the number of ranks is not known: the files must at least be those of ranks 0, 1, 2 …
    return [file for rank in range(ranks or 2) if (file := f"rng_state_{rank}.pth") not in names]
