"""PEFT's own way: the whole model in memory, for adapters that PEFT can merge and plain algebra cannot.

PEFT warns where it should stop: at adapter tensors that are missing or fit nothing, at NaN, at tied weights. So what it
does is held against the file before, and against the live adapter after.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_recipes.core.bit_sums import bit_sums
from hf_recipes.core.container_memory import free_memory_bytes
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.meta_model import named_class
from hf_recipes.core.tensors import TensorEntry, entries_by_name, iter_entries, read_header
from hf_recipes.export.bases.read import BaseModel
from hf_recipes.export.soundness import is_finite

# Differences of logits as a share of the largest logit: what fp32 sums in another order leave, and what is never right.
_FLOOR, _CEILING = 2e-5, 1e-4
_POSITIONS = 64


@dataclass(frozen=True)
class InMemoryFacts:
    """What a merge in memory did and how it was checked; `dataclasses.asdict` goes into the report.

    `largest_difference` is that of the logits of live adapter and merged model in fp32, on `positions` tokens,
    `allowed` its bound, `effect` the largest difference that the adapter makes to the base. `left_out` are tensors of
    the base that transformers does not load, and so does not write.
    """

    method: str
    modules: int
    adapter_tensors: int
    tensors_total: int
    tensors_changed: int
    positions: int
    largest_difference: float
    allowed: float
    effect: float
    left_out: list[str]
    memory_bytes: int
    bytes: int
    seconds: float

    def lines(self) -> list[str]:
        """For the terminal."""
        return [
            f"in memory, by PEFT ({self.method}): {self.tensors_changed} tensors changed in {self.modules} modules; "
            f"live adapter against merged in fp32 on {self.positions} positions: largest difference "
            f"{self.largest_difference:.1e} of {self.allowed:.1e} allowed; the adapter itself makes {self.effect:.1e}",
        ]


def merge_in_memory(
    adapter: Path, base: BaseModel, staging: Path, dtype: str, *, method: str, max_shard_size: str = "50GB"
) -> InMemoryFacts:
    """Merge by `peft`'s ``merge_and_unload`` in fp32 and write the weights (and their index) into `staging`.

    Args:
        adapter: directory PEFT saved.
        base: read by its headers; in 16 or 32 bits.
        staging: directory for the weight files.
        dtype: torch's name (``bfloat16``) for every float tensor written.
        method: what is told as the reason (``VERA``, ``kasa_config``).
        max_shard_size: of a file, as `save_pretrained` takes it.

    Raises:
        UserError: a quantised base, too little memory, NaN, adapter tensors that are missing or fit nothing, an update
            of tied weights, a value that does not fit into `dtype`.
        CheckFailed: nothing changed, something else than the adapter's modules did, or the merged model's logits are
            not those of the live adapter.
    """
    started = time.perf_counter()
    needed = _check_memory(base, adapter, method)
    entries = entries_by_name(adapter)
    _check_finite(entries.values())
    model, left_out = _load_base(base)
    before, plain = bit_sums(_unique(model)), _logits(model)
    tied = dict(model.all_tied_weights_keys)
    live = _load_adapter(model, adapter)
    _check_consumed(live, entries, adapter)
    modules = _changed_modules(live)
    _check_ties(modules, tied, adapter, method)
    lively = _logits(live)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would warn of is checked
        merged = live.merge_and_unload()
    trained = [name.removeprefix("base_model.model.") for name in entries]  # biases, which have no wrapper
    changed = _check_changes(before, bit_sums(_unique(merged)), modules, trained, adapter)
    difference, allowed, effect = _check_logits(plain, lively, _logits(merged))
    nbytes, total = _save(merged, staging, dtype, max_shard_size)
    return InMemoryFacts(
        method=method,
        modules=len(modules),
        adapter_tensors=len(entries),
        tensors_total=total,
        tensors_changed=len(changed),
        positions=lively.shape[0],
        largest_difference=difference,
        allowed=allowed,
        effect=effect,
        left_out=left_out,
        memory_bytes=needed,
        bytes=nbytes,
        seconds=time.perf_counter() - started,
    )


def needed_bytes(base: BaseModel, adapter: Path) -> int:
    """Memory of a merge: all parameters in fp32, three more of the largest while it is changed, and the adapter."""
    sizes = [4 * prod(tensor.shape) for tensor in base.tensors.values()]
    return sum(sizes) + 3 * max(sizes) + 2 * sum(entry.nbytes for entry in iter_entries(adapter))


def _check_memory(base: BaseModel, adapter: Path, method: str) -> int:
    """Tell that the whole model is in memory and why; raise `UserError` when it cannot be."""
    packed = [tensor.name for tensor in base.tensors.values() if not isinstance(tensor, TensorEntry)]
    if packed or base.config.get("quantization_config"):
        raise UserError(
            f"'{adapter}' ({method}) is merged by peft in memory, for which the base '{base.directory}' must not be "
            "quantised: give the 16-bit model it was made from with --base."
        )
    needed, free = needed_bytes(base, adapter), free_memory_bytes()
    if needed > free:
        raise UserError(
            f"'{adapter}' ({method}) is merged by peft with the whole model in memory in fp32, which takes "
            f"{needed / 1e9:.1f} GB where {free / 1e9:.1f} GB are free: merge it on a machine with more memory."
        )
    logger.info(
        "%s has no algebra tensor by tensor here: peft merges it with the whole model in memory in fp32 (%.1f GB, %.1f "
        "GB are free).",
        method,
        needed / 1e9,
        free / 1e9,
    )
    return needed


def _check_finite(entries: Iterable[TensorEntry]) -> None:
    for entry in entries:
        if not is_finite(entry.load()):
            raise UserError(
                f"Adapter tensor '{entry.name}' holds NaN or Inf: training diverged; merge an earlier checkpoint."
            )


def _load_base(base: BaseModel) -> tuple[Any, list[str]]:
    """The base in fp32, and the names of its tensors that transformers does not load."""
    import transformers

    names = base.config.get("architectures") or [None]
    model_class = named_class(names[0]) or transformers.AutoModelForCausalLM
    model, info = model_class.from_pretrained(
        base.directory, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
    )
    lacking = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    if lacking:
        raise UserError(
            f"The base '{base.directory}' lacks {len(lacking)} parameters of {names[0]} ({sorted(lacking)[0]}): fetch "
            "it again, or give the base of that class with --base."
        )
    return model.eval(), sorted(info["unexpected_keys"])


def _load_adapter(model: Any, adapter: Path) -> Any:
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PeftModel.from_pretrained(model, adapter).eval()
    except (ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
        raise UserError(f"peft cannot load '{adapter}' onto this base ({reason}): it belongs to another one.") from None


def _check_consumed(live: Any, entries: Mapping[str, TensorEntry], adapter: Path) -> None:
    """What PEFT would save of the live adapter is what the file holds, by name and by value."""
    from peft import get_peft_model_state_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = get_peft_model_state_dict(live, save_embedding_layers=False)
    whole = live.state_dict()  # embeddings that PEFT saved along with the adapter: loaded into the base
    held |= {name: whole[name] for name in entries if name in whole}
    if wrong := sorted(set(held) ^ set(entries)):
        state = "fits nothing in the base" if wrong[0] in entries else "is missing"
        raise UserError(
            f"{len(wrong)} tensors of '{adapter}' and this base do not go together: '{wrong[0]}' {state}; nothing was "
            "merged."
        )
    for name, entry in entries.items():
        stored, value = entry.load(), held[name]
        if stored.shape != value.shape or not torch.equal(stored.to(value.dtype), value):
            raise CheckFailed(f"peft did not load '{name}' of '{adapter}' as it is stored; nothing was merged")


def _changed_modules(live: Any) -> list[str]:
    """Names, as in the base, of the modules that the adapter wraps."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    inside = live.base_model.model
    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    wrapped = [name for name, each in inside.named_modules() if isinstance(each, kinds)]
    return [name for name in wrapped if not any(name.startswith(f"{other}.") for other in wrapped)]


def _check_ties(modules: list[str], tied: Mapping[str, str], adapter: Path, method: str) -> None:
    """A tied tensor is one for all that share it: what is merged into it reaches those that the adapter never changed.
    Trained token rows are different: PEFT lets a tied head follow them."""
    if method == "TRAINABLE_TOKENS":
        return
    for target, source in tied.items():
        names = [name for name in (target, source) if _inside(name, modules)]
        if names:
            raise UserError(
                f"'{adapter}' ({method}) changes '{names[0]}', and '{target}' and '{source}' of the base are one "
                "tensor: peft's merge would change both; use the adapter unmerged, through peft."
            )


def _inside(parameter: str, modules: Iterable[str]) -> bool:
    return any(parameter.startswith(f"{module}.") for module in modules)


def _unique(model: Any) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied ones once."""
    return {name: each.detach() for name, each in (*model.named_parameters(), *model.named_buffers())}


def _check_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], modules: list[str], trained: list[str], adapter: Path
) -> list[str]:
    if set(before) != set(after):
        extra = sorted(set(before) ^ set(after))
        raise CheckFailed(f"peft's merge left other tensors than the base has ('{extra[0]}'); nothing was merged")
    changed = [name for name in before if before[name] != after[name]]
    if not changed:
        raise CheckFailed(f"{adapter} changes nothing: all weights equal the base; nothing was merged")
    if strange := [name for name in changed if not _inside(name, modules) and name not in trained]:
        raise CheckFailed(f"peft's merge changed '{strange[0]}', which the adapter does not touch; nothing was merged")
    if same := [module for module in modules if not any(_inside(name, [module]) for name in changed)]:
        logger.warning(
            "%d of %d modules of the adapter equal the base (their updates are zero), e.g. %s.",
            len(same),
            len(modules),
            same[0],
        )
    return changed


def _logits(model: Any) -> Tensor:
    """(positions, words) on tokens from all over the vocabulary."""
    words = model.get_input_embeddings().weight.shape[0]
    ids = torch.linspace(0, words - 1, _POSITIONS).long()[None]
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        output = model(input_ids=ids, **more)
    logits = output.logits if hasattr(output, "logits") else output[0]
    return logits.reshape(-1, logits.shape[-1]).float()


def _check_logits(base: Tensor, live: Tensor, merged: Tensor) -> tuple[float, float, float]:
    """Largest difference of live and merged, what is allowed, and what the adapter makes.

    Allowed is a tenth of what the adapter makes, within what fp32 leaves (`_FLOOR`) and what is never right
    (`_CEILING`).
    """
    difference, effect = float((live - merged).abs().max()), float((live - base).abs().max())
    scale = float(live.abs().max())
    allowed = min(_CEILING * scale, max(0.1 * effect, _FLOOR * scale))
    if not difference <= allowed:
        raise CheckFailed(
            f"the merged model's logits differ from the live adapter's by {difference:.2g} where {allowed:.2g} is "
            f"allowed (the adapter makes {effect:.2g}): peft's merge is not what the adapter computes; nothing was "
            "merged"
        )
    return difference, allowed, effect


def _save(model: Any, staging: Path, dtype: str, max_shard_size: str) -> tuple[int, int]:
    """Write the weights in `dtype`, under the base's names, as transformers saves them; returns bytes and tensors."""
    target = getattr(torch, dtype)
    for name, tensor in _unique(model).items():
        if tensor.is_floating_point() and not is_finite(tensor.to(target)):
            raise UserError(f"'{name}' cannot be merged: its values do not fit into {target}; choose bf16 or fp32.")
    model.to(target).save_pretrained(staging, max_shard_size=max_shard_size)
    for name in ("config.json", "generation_config.json"):  # those of the base and the training are written instead
        (staging / name).unlink(missing_ok=True)
    written = [entry for file in sorted(staging.glob("*.safetensors")) for entry in read_header(file)[0].values()]
    return sum(entry.nbytes for entry in written), len(written)
