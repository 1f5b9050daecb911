"""Which weights of a checkpoint bitsandbytes replaces when a model is loaded: asked of transformers itself, on the meta
device, by the config alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.meta_model import named_class

_AUTO_CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "CAUSAL_LM": "AutoModelForCausalLM",
}


def model_of_task(directory: Path, task_type: str | None) -> Any:
    """The model of `directory` without weights, unquantised.

    Args:
        directory: with config.json.
        task_type: PEFT's task type of the adapter, which decides the class; without one the config's own class.

    Raises:
        UserError: transformers has no class for it (a model with code of its own).
    """
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        own = named_class((config.architectures or [None])[0])
        auto = getattr(transformers, _AUTO_CLASSES.get(task_type or "", "AutoModelForCausalLM"))
        with torch.device("meta"):
            # A language model's own class may be one that also sees; the task of a classifier decides over it.
            if own is not None and task_type in (None, "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION"):
                return own(config)
            return auto.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError, OSError, ImportError) as error:
        raise UserError(
            f"Which layers of '{directory}' are quantised cannot be told ({first_line(error)}): this needs a "
            "model class that transformers has; give --base-values original."
        ) from None


def quantised_weights(model: Any, quantization: Any, names: Iterable[str]) -> dict[str, bool]:
    """The tensors of a 16-bit checkpoint that transformers quantises while it loads them.

    What decides is `HfQuantizer.preprocess_model`: linear layers, but for the head, tied weights, those in
    `llm_int8_skip_modules` and those a model keeps in fp32.

    Args:
        model: from `model_of_task`; its layers are replaced.
        quantization: a `transformers.BitsAndBytesConfig`.
        names: of all tensors in the checkpoint.

    Returns:
        Name of the weight → whether it is laid out (inputs, outputs), as in `Conv1D`, and turned around first.

    Raises:
        UserError: a quantised layer's weight is not a tensor of the checkpoint but put together from several.
    """
    from transformers.quantizers import AutoHfQuantizer

    quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
    parameters = checkpoint_parameters(model, names)
    quantizer.preprocess_model(model, device_map=None)
    replaced = {
        f"{name}.weight": issubclass(module.source_cls, _conv1d())
        for name, module in model.named_modules()
        if hasattr(module, "source_cls")
    }
    found = {name: replaced[parameter] for name, (parameter, _) in parameters.items() if parameter in replaced}
    fused = [name for name, (parameter, is_part) in parameters.items() if is_part and parameter in replaced]
    missing = set(replaced) - {parameter for parameter, _ in parameters.values()}
    if fused or missing:
        raise UserError(
            f"The base's checkpoint does not hold {fused[0] if fused else min(missing)} as one quantised weight "
            "(transformers puts it together while loading): give --base-values original."
        )
    return found


def conv1d_weights(model: Any, names: Iterable[str]) -> set[str]:
    """The tensors of a checkpoint that belong to `Conv1D` layers, which keep (inputs, outputs).

    Once bitsandbytes has quantised such a weight it is saved as (outputs, inputs).
    """
    layers = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, _conv1d())}
    if not layers:
        return set()
    return {name for name, (parameter, _) in checkpoint_parameters(model, names).items() if parameter in layers}


def checkpoint_parameters(model: Any, names: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Tensor of a checkpoint → the parameter transformers loads it into, and whether it is only a part of that."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    state = model.state_dict()
    result = {}
    for name in names:
        parameter, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        result[name] = (parameter, pattern is not None)
    return result


def _conv1d() -> type[nn.Module]:
    from transformers.pytorch_utils import Conv1D

    return Conv1D
