"""Model and tokenizer in one call, ready for any Trainer: `build_model` and one function for each method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.models.base import load_base
from hf_recipes.models.precision import choose_precision, detect_hardware
from hf_recipes.models.quantized import (
    FOUR_BIT_KEYS,
    QuantizationSettings,
    check_eight_bit,
    check_four_bits,
    choose_quantization,
    freeze_quantized,
)
from hf_recipes.models.soundness import tell_soundness
from hf_recipes.models.source import ModelSource, find_model, one_sentence
from hf_recipes.models.stored import WHOLE_METHODS
from hf_recipes.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# What `from_pretrained` takes besides the fields of the model's config.
LOAD_ARGUMENTS = (
    "attn_implementation",
    "cache_dir",
    "device_map",
    "distributed_config",
    "experts_implementation",
    "force_download",
    "local_files_only",
    "max_memory",
    "offload_folder",
    "subfolder",
    "token",
    "tp_plan",
    "trust_remote_code",
    "use_kernels",
    "use_safetensors",
    "variant",
)


def build_model(
    name_or_path: str | Path, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer for full fine-tuning.

    Args:
        name_or_path: Directory, ``.gguf`` file or Hub name.
        dtype: ``bf16``, ``fp16``, ``fp32`` in any spelling; ``auto`` is fp32, the master weights of a full fine-tune.
        revision: Hub revision.
        arguments: For ``from_pretrained`` (``attn_implementation``, ``trust_remote_code`` …) or fields of the model's
            config.

    Raises:
        UserError: the model cannot be found or loaded, its weights are stored quantised and cannot be trained, an
            argument is unknown, or tokenizer and embedding do not fit.
    """
    return _load("full", name_or_path, dtype, revision, _load_arguments(find_model(name_or_path, revision), arguments))


def build_partial_model(
    name_or_path: str | Path, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model of which only some layers or modules are trained, and its tokenizer.

    Args:
        name_or_path: As in `build_model`.
        dtype: Likewise; in a 16-bit one the frozen part is kept in it and what is trained in fp32, which needs a
            Trainer with autocast.
        revision: Likewise.
        arguments: Fields of `methods.partial.PartialSettings` (which layers and modules); the rest as in `build_model`.

    Raises:
        UserError: as in `build_model`, or a name matches nothing in the model.
    """
    from hf_recipes.models.methods.partial import PartialSettings, attach_partial

    return _build("partial", PartialSettings, attach_partial, name_or_path, dtype, revision, arguments)


def build_lora_model(
    name_or_path: str | Path, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a frozen base with a LoRA (or DoRA) adapter, and its tokenizer.

    Args:
        name_or_path: Directory, ``.gguf`` file or Hub name.
        dtype: Dtype of the base, in any spelling; ``auto`` is bf16 where the hardware computes it, else fp32.
        revision: Hub revision.
        arguments: Fields of `methods.lora.LoraSettings` (``r``, ``alpha``, ``dropout``, ``target_modules``,
            ``use_dora`` …); the rest as in `build_model`.

    Raises:
        UserError: as in `build_model`, or a target matches no module.
    """
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora

    return _build("lora", LoraSettings, attach_lora, name_or_path, dtype, revision, arguments)


def build_qlora_model(
    name_or_path: str | Path,
    *,
    compute_dtype: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    **arguments: Any,
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a base in NF4 with double quantisation and a LoRA adapter on it, and the tokenizer; on a CPU too.

    Args:
        name_or_path: Directory or Hub name of a 16-bit or 32-bit model, quantised while loading; or of one that
            bitsandbytes has quantised already.
        compute_dtype: What quantised weights are dequantised to for each product, in any spelling; ``auto`` as in
            `build_lora_model`; default bf16.
        dtype: The same, by the name it has elsewhere.
        revision: Hub revision.
        arguments: Fields of `quantized.QuantizationSettings` (``quant_type``, ``double_quant``, ``quant_storage``,
            ``load_in_8bit``); the rest as in `build_lora_model`.

    Raises:
        UserError: as in `build_lora_model`, bitsandbytes is missing, `compute_dtype` and `dtype` differ, or a setting
            of four bits is given with ``load_in_8bit``.
    """
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora

    quantization, rest = _split(arguments, QuantizationSettings)
    if quantization.get("load_in_8bit"):
        check_eight_bit(quantization)
    return _build(
        "qlora",
        LoraSettings,
        attach_lora,
        name_or_path,
        _one_dtype(compute_dtype, dtype),
        revision,
        rest,
        QuantizationSettings(**quantization),
    )


def build_adapter_model(
    name_or_path: str | Path, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a frozen base with bottleneck adapters after its blocks (Houlsby et al. 2019), and its tokenizer.

    Args:
        name_or_path: As in `build_lora_model`.
        dtype: likewise.
        revision: likewise.
        arguments: Fields of `methods.bottleneck.BottleneckSettings`; the rest as in `build_model`.

    Raises:
        UserError: as in `build_lora_model`.
    """
    from hf_recipes.models.methods.bottleneck import BottleneckSettings, attach_bottleneck

    return _build("adapter", BottleneckSettings, attach_bottleneck, name_or_path, dtype, revision, arguments)


def build_prefix_model(
    name_or_path: str | Path, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a frozen base with trained key and value prefixes (Li and Liang 2021), and its tokenizer.

    Args:
        name_or_path: As in `build_lora_model`.
        dtype: likewise.
        revision: likewise.
        arguments: Fields of `methods.prefix.PrefixSettings`; the rest as in `build_model`.

    Raises:
        UserError: as in `build_model`.
    """
    from hf_recipes.models.methods.prefix import PrefixSettings, attach_prefix

    return _build("prefix", PrefixSettings, attach_prefix, name_or_path, dtype, revision, arguments)


def build_ia3_model(
    name_or_path: str | Path, *, dtype: str = "auto", revision: str | None = None, **arguments: Any
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a frozen base with trained scales on keys, values and MLP (IA3, Liu et al. 2022), and its tokenizer.

    Args:
        name_or_path: As in `build_lora_model`.
        dtype: likewise.
        revision: likewise.
        arguments: Fields of `methods.ia3.IA3Settings`; the rest as in `build_model`.

    Raises:
        UserError: as in `build_lora_model`.
    """
    from hf_recipes.models.methods.ia3 import IA3Settings, attach_ia3

    return _build("ia3", IA3Settings, attach_ia3, name_or_path, dtype, revision, arguments)


def _build(
    method: str,
    settings_type: type,
    attach: Callable[..., Any],
    name_or_path: str | Path,
    dtype: str,
    revision: str | None,
    arguments: Mapping[str, Any],
    quantization: QuantizationSettings | None = None,
) -> tuple[Any, PreTrainedTokenizerBase]:
    settings, rest = _split(arguments, settings_type)
    more = (settings_type, QuantizationSettings) if quantization else (settings_type,)
    known = [field.name for one in more for field in fields(one)]
    load_arguments = _load_arguments(find_model(name_or_path, revision), rest, known)
    checked = settings_type(**settings)  # before the base is loaded, which may take minutes
    model, tokenizer = _load(method, name_or_path, dtype, revision, load_arguments, quantization)
    return attach(model, checked), tokenizer


def _one_dtype(compute_dtype: str | None, dtype: str | None) -> str:
    """The compute dtype of QLoRA, by either name."""
    given = [name for name in (compute_dtype, dtype) if name is not None]
    if len({canonical_dtype_name(name) for name in given}) > 1:
        raise UserError(
            f"compute_dtype is {compute_dtype} and dtype is {dtype}, which mean the same: give one of them."
        )
    return given[0] if given else "bf16"


def _split(arguments: Mapping[str, Any], settings_type: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that are fields of a settings dataclass, and the others."""
    names = {field.name for field in fields(settings_type)}
    return (
        {name: value for name, value in arguments.items() if name in names},
        {name: value for name, value in arguments.items() if name not in names},
    )


def _load_arguments(
    source: ModelSource, arguments: Mapping[str, Any], settings: Collection[str] = ()
) -> dict[str, Any]:
    """`arguments` as they are, once each is one of `from_pretrained`'s or a field of the model's config.

    Raises:
        UserError: one is neither, with the nearest name.
    """
    unknown = [name for name in arguments if name not in LOAD_ARGUMENTS]
    if unknown:
        from transformers import AutoConfig

        with one_sentence(source):
            config = AutoConfig.from_pretrained(
                source.name_or_path,
                trust_remote_code=arguments.get("trust_remote_code", False),
                **source.load_arguments(),
            )
        of_config = config.to_dict()
        for name in unknown:
            if name not in of_config:
                known = (*settings, *LOAD_ARGUMENTS, *of_config)
                setting = f"a setting of the method ({', '.join(settings)}), " if settings else ""
                raise UserError(
                    f"'{name}' is neither {setting}an argument of from_pretrained nor a field of the model's config"
                    f"{_nearest_argument(name, settings, known)}: check its spelling."
                )
    return dict(arguments)


def _nearest_argument(name: str, settings: Collection[str], known: Iterable[str]) -> str:
    """`nearest`, which also knows a setting by its recipe key: ``lora_r`` is ``r`` here."""
    plain = FOUR_BIT_KEYS.get(name, name.removeprefix("lora_").removeprefix("adapter_").removeprefix("ia3_"))
    return f" (did you mean '{plain}'?)" if plain in settings else nearest(name, known)


def _load(
    method: str,
    name_or_path: str | Path,
    dtype: str,
    revision: str | None,
    arguments: Mapping[str, Any],
    quantization: QuantizationSettings | None = None,
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Base and tokenizer, checked against each other; frozen unless the method trains the base's own weights."""
    source = find_model(name_or_path, revision)
    whole = method in WHOLE_METHODS  # in fp32, so that it trains in any Trainer, with autocast or without
    precision = choose_precision("full" if whole else method, detect_hardware(), dtype=canonical_dtype_name(dtype))
    tokenizer = load_tokenizer(
        str(name_or_path), revision=revision, trust_remote_code=arguments.get("trust_remote_code", False)
    )
    config = choose_quantization(source, method, precision.dtype, quantization)
    model = load_base(source, dtype=precision.dtype, quantization=config, **arguments)
    tell_soundness(model, tokenizer)
    check_four_bits(model)
    return model if whole else freeze_quantized(model, precision.dtype), tokenizer
