"""Where a LoRA adapter starts: in the base's own directions (PiSSA, OLoRA), in those of the data (EVA), or orthogonal.

PiSSA and OLoRA move a part of each weight into the adapter: ``W = R + scale·B₀·A₀``, and the residual ``R`` is what
stays frozen. An adapter trained so belongs to ``R``. What a run hands out belongs to the base as published, as plain
LoRA of twice the rank: ``R + scale·B·A = W + scale·[B, -B₀]·[A; A₀]``. So ``A₀`` and ``B₀`` are kept beside the run;
a resumed run takes its residual from them, to the bit, and its checkpoints stay as they are.

PEFT's own way (`get_peft_model`, `save_pretrained(path_initial_model_for_weight_conversion=…)`) is not taken: over a
16-bit base it rounds ``A₀`` and ``B₀`` after it made the residual from them, so that the two no longer add up; and its
conversion drops DoRA's magnitudes and `modules_to_save`, and cannot do rsLoRA with patterns.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, staged_beside, write_json
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main
from hf_recipes.core.wrapped import body_of

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor, nn

INITIAL_NAME = "initial_adapter.safetensors"
_WEIGHTS_NAME = "adapter_model.safetensors"
_CONFIG_NAME = "adapter_config.json"
_ADAPTER = "default"
_SEED = 0  # of the random products in pissa_niter_N, so that every run and every rank starts alike
_EVA_BATCHES = 200  # enough for thousands of tokens a direction; a start that has not settled by then never will


def changes_base(start: Any) -> bool:
    """Whether an `init_lora_weights` takes its start out of the base's weights."""
    return isinstance(start, str) and (start == "olora" or start.startswith("pissa"))


def start_adapter(model: PeftModel, start: str, initial: Mapping[str, Tensor] | None = None) -> None:
    """Give all LoRA matrices of `model` (fresh, base untouched) their start; embeddings keep PEFT's default.

    Decompositions are computed in fp32, on the GPU if there is one, one module at a time.

    Args:
        model: With an adapter of default start on it, whose config then says `start`.
        start: ``orthogonal`` (B·A = 0 with neither zero); ``pissa`` (the largest singular values, Meng et al. 2024),
            ``pissa_niter_N`` (the same by N subspace iterations, seeded: seconds instead of minutes); ``olora`` (the
            first columns of a QR decomposition, Büyükakyüz 2024).
        initial: From `initial_adapter`: start there instead of decomposing again.

    Raises:
        UserError: the base cannot give its weights (quantised, sharded, tied), or `initial` is another adapter's.
            Nothing was changed then.
    """
    import torch

    began = time.perf_counter()
    layers = _matrices(model)
    _check_layers(model, layers, start)
    saved = {name: _saved_pair(name, layer, initial) for name, layer in layers.items()} if initial is not None else {}
    if changes_base(start):
        _tell_dropout(model.peft_config[_ADAPTER].lora_dropout, start)
    with torch.no_grad():
        for name, layer in layers.items():
            a, b = saved[name] if saved else _first_pair(layer, start)
            layer.lora_A[_ADAPTER].weight.copy_(a)
            layer.lora_B[_ADAPTER].weight.copy_(b)
            if changes_base(start):
                _take_out(layer)
    model.peft_config[_ADAPTER].init_lora_weights = start
    logger.info("LoRA start %s: %d modules, %.1f s.", start, len(layers), time.perf_counter() - began)


def _tell_dropout(dropout: float, start: str) -> None:
    if dropout:
        logger.warning(
            "init_lora_weights: '%s' moves a part of the base into the adapter, of which lora_dropout %g then drops "
            "some: set lora_dropout to 0.",
            start,
            dropout,
        )


def _matrices(model: PeftModel) -> dict[str, Any]:
    """The LoRA layers over matrices, by name; those over embeddings hold their halves elsewhere."""
    from peft.tuners.lora import LoraLayer

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer) and _ADAPTER in module.lora_A
    }


def _check_layers(model: PeftModel, layers: Mapping[str, Any], start: str) -> None:
    key = f"init_lora_weights: '{start}'"
    holders = defaultdict(list)
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)].append(name.removeprefix("base_model.model.").removesuffix(".base_layer"))
    for name, layer in layers.items():
        short = name.removeprefix("base_model.model.")
        if layer.lora_A[_ADAPTER].weight.ndim != 2:
            raise UserError(f"{key} is for linear modules, and '{short}' is none: leave it out or use default.")
        if not changes_base(start):
            continue
        weight: Any = getattr(layer.get_base_layer(), "weight", None)
        if not _is_plain(weight):
            raise UserError(
                f"{key} takes its start out of the base's weights, but '{short}' is quantised or sharded, so that the "
                "rest could not be kept exactly: use default (or eva), or a 16-bit base that each process holds whole."
            )
        if len(holders[id(weight)]) > 1:
            raise UserError(
                f"{key} takes its start out of the base's weights, but those of '{short}' are shared "
                f"({', '.join(holders[id(weight)])}): leave it out of lora_target_modules."
            )
        if layer.r[_ADAPTER] > min(weight.shape):
            raise UserError(
                f"{key}: '{short}' is {' × '.join(map(str, weight.shape))}, too small for rank {layer.r[_ADAPTER]}: "
                "lower lora_r, or give it a rank of its own by lora_rank_pattern."
            )


def _is_plain(weight: Any) -> bool:
    """Whether the values lie here, whole, as floats: not packed, not a DTensor, not on `meta`, not ZeRO-3's."""
    import torch

    plain = type(weight) is torch.nn.Parameter and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return plain and not weight.is_meta and not hasattr(weight, "ds_id")


def _saved_pair(name: str, layer: Any, initial: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    halves = []
    for half, module in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
        tensor = initial.get(f"{name}.{half}.weight")
        if tensor is None or tensor.shape != module[_ADAPTER].weight.shape:
            raise UserError(
                f"The kept start of the adapter ({INITIAL_NAME}) does not fit '{name}': resume with the lora_ settings "
                "the run was started with, or start anew with another output_dir."
            )
        halves.append(tensor)
    return halves[0], halves[1]


def _first_pair(layer: Any, start: str) -> tuple[Tensor, Tensor]:
    """A (rank, inputs) and B (outputs, rank) of the start, as PEFT computes them (`peft/tuners/lora/layer.py`)."""
    import torch

    rank = layer.r[_ADAPTER]
    if start == "orthogonal":
        rotation = torch.linalg.qr(torch.randn(rank, rank)).Q
        a = rotation[0::2].T @ torch.randn(rank // 2, layer.in_features) / 10
        b = torch.randn(layer.out_features, rank // 2) @ rotation[1::2] / 10
        return a, b
    weight = _by_outputs(layer, layer.get_base_layer().weight.detach().to(_fast_device(layer), torch.float32))
    if start == "olora":
        q, r = torch.linalg.qr(weight)
        return r[:rank], q[:, :rank]
    u, s, vh = _singular(weight, start, rank)
    root = (s[:rank] / layer.scaling[_ADAPTER]).sqrt()
    return root[:, None] * vh[:rank], u[:, :rank] * root


def _singular(weight: Tensor, start: str, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    if start == "pissa":
        u, s, vh = torch.linalg.svd(weight, full_matrices=False)
        return u, s, vh
    with torch.random.fork_rng(devices=[weight.device] if weight.is_cuda else []):
        torch.manual_seed(_SEED)
        u, s, v = torch.svd_lowrank(weight, rank, niter=int(start.rpartition("_")[2]))
    return u, s, v.T


def _fast_device(layer: Any) -> Any:
    """Where to decompose: models are loaded on the CPU, where that takes minutes, before the Trainer moves them."""
    import torch

    device = layer.get_base_layer().weight.device
    on_cpu = device.type == "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_cpu else device


def _by_outputs(layer: Any, matrix: Tensor) -> Tensor:
    """Between a weight as it is kept and (outputs, inputs); GPT-2's `Conv1D` keeps the transpose."""
    return matrix.T if layer.fan_in_fan_out else matrix


def _take_out(layer: Any) -> None:
    """``R = W - scale·B₀·A₀`` from the halves as the adapter holds them, rounded once."""
    base = layer.get_base_layer()
    a, b = layer.lora_A[_ADAPTER].weight.float(), layer.lora_B[_ADAPTER].weight.float()
    taken = _by_outputs(layer, b @ a * layer.scaling[_ADAPTER])
    base.weight.data = (base.weight.float() - taken).to(base.weight.dtype).contiguous()


def initial_adapter(model: PeftModel) -> dict[str, Tensor]:
    """Copy the LoRA halves of a model that was just started (on the CPU, by their names in PEFT's file)."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items() if _half(name)}


def _half(name: str) -> str | None:
    """``A`` or ``B`` for a LoRA matrix, None for anything else in an adapter's file."""
    parts = name.split(".")
    for half in ("A", "B"):
        if f"lora_{half}" in parts or f"lora_embedding_{half}" in parts:
            return None if parts[-1] == "bias" else half
    return None


def save_initial(initial: Mapping[str, Tensor], directory: Path) -> None:
    """Write the start of an adapter into a run's directory, whole or not at all."""
    _write_tensors(directory / INITIAL_NAME, initial)


def load_initial(directory: Path) -> dict[str, Tensor] | None:
    """Read what `save_initial` wrote; None where there is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = directory / INITIAL_NAME
    try:
        return load_file(file) if file.is_file() else None
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}): restore it, or start anew with another output_dir.") from None


def save_as_plain_lora(model: PeftModel, initial: Mapping[str, Tensor], directory: Path | str) -> None:
    """Save a model started by PiSSA or OLoRA as plain LoRA for the original base; see `make_plain_lora`."""
    model.save_pretrained(str(directory))
    make_plain_lora(Path(directory), initial)


def make_plain_lora(directory: Path, initial: Mapping[str, Tensor]) -> None:
    """Turn a saved adapter that belongs to a residual base into plain LoRA for the original base, in place.

    Reads and writes files only, so that it does not matter how the model was spread over devices; call it on rank 0.
    The rank doubles, the scale of the update stays; DoRA's magnitudes and modules trained in full are kept.

    Args:
        directory: As `save_pretrained` left it.
        initial: From `initial_adapter` or `load_initial`.

    Raises:
        UserError: the adapter is plain already, is a checkpoint (which must stay resumable), or `initial` belongs to
            another adapter.
    """
    from safetensors.torch import load_file

    if (directory / "trainer_state.json").exists():
        raise UserError(f"'{directory}' is a checkpoint, which must stay as it is to be resumed: convert a copy.")
    config = read_json(directory / _CONFIG_NAME)
    if not changes_base(config.get("init_lora_weights")):
        raise UserError(f"'{directory}' is plain LoRA already: there is nothing to convert.")
    tensors = plain_tensors(load_file(directory / _WEIGHTS_NAME), initial)
    _write_tensors(directory / _WEIGHTS_NAME, tensors)
    write_json(directory / _CONFIG_NAME, plain_config(config))


def plain_tensors(tensors: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``[A; A₀]`` and ``[B, -B₀]`` for each pair; everything else as it is."""
    import torch

    plain = {}
    for name, tensor in tensors.items():
        if (half := _half(name)) is None:
            plain[name] = tensor
            continue
        start = initial.get(name)
        if start is None or start.shape != tensor.shape:
            raise UserError(f"The kept start of the adapter ({INITIAL_NAME}) does not fit '{name}': it is another's.")
        start = start.to(tensor.dtype)
        plain[name] = torch.cat([tensor, start]) if half == "A" else torch.cat([tensor, -start], dim=1)
    return plain


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The ``adapter_config.json`` for `plain_tensors`: twice the rank and the same scale, that is ``alpha / r`` with
    twice the alpha, or ``alpha / √r`` with √2 times (rsLoRA), patterns alike."""
    factor = 2**0.5 if config.get("use_rslora") else 2
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    return {
        **config,
        "init_lora_weights": True,
        "r": 2 * config["r"],
        "lora_alpha": factor * config["lora_alpha"],
        "rank_pattern": {pattern: 2 * rank for pattern, rank in ranks.items()},
        "alpha_pattern": {pattern: factor * alpha for pattern, alpha in alphas.items()},
    }


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    staged = staged_beside(file)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, staged, metadata={"format": "pt"})
    staged.replace(file)


def start_from_data(model: PeftModel, batches: Sequence[Mapping[str, Tensor]]) -> None:
    """EVA (Paischer et al. 2024): start A in the principal directions of each module's inputs on real data, and share
    out the ranks by the variance they explain. B starts at zero, so the base stays as it is.

    Runs on rank 0 and is handed to the others, so all have the same ranks. Modules that get rank 0 lose their adapter;
    the model's config tells the new targets and ranks (`lora.resumed_settings` reads them again). To be called before
    there is an optimizer, with the model on the device that shall compute it.

    Args:
        model: From `attach_lora` with ``init_lora_weights: eva``.
        batches: As `SupervisedCollator` makes them. Only supervised positions count, so padding, whose labels are -100,
            never does. Batches with fewer of them than twice the rank are left out, which is told.

    Raises:
        UserError: no batch is long enough, a module's input is smaller than twice its rank, or the directions do not
            settle.
    """
    from peft import initialize_lora_eva_weights

    layers = _matrices(model)
    if not layers:
        raise UserError("init_lora_weights: 'eva' is for linear modules, and lora_target_modules names none.")
    dtype = next(iter(layers.values())).lora_A[_ADAPTER].weight.dtype
    before = {name: layer.r[_ADAPTER] for name, layer in layers.items()}
    state = from_main(lambda: _principal_inputs(model, batches, before))
    device = next(model.parameters()).device
    initialize_lora_eva_weights(model, eva_state_dict={name: a.to(device) for name, a in state.items()})
    for name, parameter in model.named_parameters():
        if ".lora_" in name:  # layers of another rank were made anew, in the dtype of the base
            parameter.data = parameter.data.to(dtype)
    model.train(model.training)  # their dropout too
    after = {name: layer.r[_ADAPTER] for name, layer in _matrices(model).items()}
    logger.info(
        "LoRA start eva: ranks %d to %d over %d modules (%d of %d modules need none).",
        min(after.values()),
        max(after.values()),
        len(after),
        len(before) - len(after),
        len(before),
    )


def _principal_inputs(
    model: PeftModel, batches: Sequence[Mapping[str, Tensor]], ranks: Mapping[str, int]
) -> dict[str, Tensor]:
    """PEFT's incremental PCA, kept from running for ever where it cannot settle."""
    from peft import get_eva_state_dict

    config: Any = model.peft_config[_ADAPTER]
    needed = round(max(ranks.values()) * config.eva_config.rho)
    _check_inputs(model, needed)
    long_enough = [dict(batch) for batch in batches if int((batch["labels"] != -100).sum()) >= needed]
    if not long_enough:
        raise UserError(
            f"init_lora_weights: 'eva' needs batches of at least {needed} supervised tokens, twice the largest rank, "
            f"and none of {len(batches)} has them: raise per_device_train_batch_size or lower lora_r."
        )
    if len(long_enough) < len(batches):
        skipped = len(batches) - len(long_enough)
        logger.info("LoRA start eva: %d of %d batches are too short and left out.", skipped, len(batches))
    body = body_of(model)  # the head never has an adapter, and nobody needs its logits here
    passes = 0

    def forward(_: nn.Module, inputs: Mapping[str, Tensor]) -> None:
        nonlocal passes
        passes += 1
        if passes > _EVA_BATCHES:
            raise UserError(
                f"init_lora_weights: 'eva' has not settled after {_EVA_BATCHES} batches: give it more varied or "
                "longer batches, lower lora_r, or use default."
            )
        body(**{name: tensor for name, tensor in inputs.items() if name != "labels"}, use_cache=False)

    state = get_eva_state_dict(
        model, long_enough, forward_fn=forward, gather_distributed_inputs=False, show_progress_bar=False
    )
    return {name: tensor.cpu() for name, tensor in state.items()}


def _check_inputs(model: PeftModel, needed: int) -> None:
    for name, layer in _matrices(model).items():
        if layer.in_features < needed:
            short = name.removeprefix("base_model.model.")
            raise UserError(
                f"init_lora_weights: 'eva' chooses among {needed} directions, twice the largest rank, but '{short}' "
                f"has {layer.in_features} inputs: lower lora_r."
            )
