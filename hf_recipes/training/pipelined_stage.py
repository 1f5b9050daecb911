"""From a recipe to this rank's stage: the base's own part loaded, adapted, shared among shards, on its device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import first_on_each_machine
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.soundness import tell_soundness
from hf_recipes.models.source import ModelSource, one_sentence
from hf_recipes.models.trained_dtype import widen_trained
from hf_recipes.pipeline.cut import Part, bubble, cut_layers
from hf_recipes.pipeline.ranks import PipelineRanks
from hf_recipes.pipeline.stage import Stage
from hf_recipes.pipeline.stage_model import (
    drop_others,
    fill_adapter,
    fill_part,
    is_adapter,
    layer_sizes,
    reserve_part,
    skeleton,
)
from hf_recipes.pipeline.support import check_decoder, check_shards
from hf_recipes.pipeline.tensor_parallel import shard_layers
from hf_recipes.training.loss import supervised_cross_entropy
from hf_recipes.training.model import attach_method

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_recipes.training.setup import Setup


@dataclass(frozen=True)
class BuiltStage:
    """This rank's stage and what is known of the model it is cut from.

    Attributes:
        stage: on its device, in training mode.
        tied: the copy here of a tensor that first and last stage share and train; None where there is none.
        summed: whole parameters whose gradients are summed over the shards.
        counts: trained and all parameters of the whole model.
        generation_config: the base's.
        peft_config: PEFT's, by adapter name; None where all weights are trained.
    """

    stage: Stage
    tied: nn.Parameter | None
    summed: list[nn.Parameter]
    counts: tuple[int, int]
    generation_config: Any
    peft_config: Any

    @property
    def copy(self) -> nn.Parameter | None:
        """The tied head on the last stage, which the first stage's embedding counts and is saved for."""
        part = self.stage.part
        return self.tied if part.last and not part.first else None

    def trained(self) -> dict[str, nn.Parameter]:
        """The trained parameters of this stage by their names in the whole model."""
        return {name: each for name, each in self.stage.model.named_parameters() if each.requires_grad}


def build_stage(
    setup: Setup,
    source: ModelSource,
    tokenizer: PreTrainedTokenizerBase,
    ranks: PipelineRanks,
    *,
    longest_row: int,
    resume: Path | None,
) -> BuiltStage:
    """Build this rank's stage; to be called on every rank.

    The method is put on the whole model while most of it has no memory, so that targets are checked and adapters drawn
    as for one process; then what belongs to other stages goes, and the stage's own tensors are read.

    Raises:
        UserError: the model cannot be cut so, or the method not be put on it.
    """
    directory = local_directory(source)
    config = _read_config(source, directory)
    check_decoder(config)
    check_shards(config, ranks.shards)
    dtype = getattr(torch, canonical_dtype_name(setup.precision.dtype))
    model = skeleton(config, dtype, setup.model_settings.attn_implementation)
    tell_soundness(model, tokenizer, longest_row)
    parts = _cut(model, ranks, setup.arguments.gradient_accumulation_steps)
    part = parts[ranks.stage]
    reserve_part(model, part)
    adapted = attach_method(model, setup, "CAUSAL_LM", resume)
    counts = count_parameters(adapted)
    _check_targets(adapted)
    if adapted is not model:
        widen_trained(adapted, under_autocast=setup.precision.autocast)
    drop_others(model, part)
    summed = shard_layers(model, ranks.mesh["tp"]) if ranks.shards > 1 else []
    adapted.to(setup.arguments.device)
    fill_part(adapted, resume if resume is not None and adapted is model else directory)
    if resume is not None and adapted is not model:
        fill_adapter(adapted, resume)
    if setup.arguments.activation_checkpointing:
        model.activation_checkpointing_enable()
    stage = Stage(adapted, part, dtype, setup.precision.autocast_dtype, supervised_cross_entropy).train()
    generation = _generation_config(directory, model)
    return BuiltStage(stage, _tied(model, part), summed, counts, generation, getattr(adapted, "peft_config", None))


def local_directory(source: ModelSource) -> Path:
    """Where the base's files lie; one rank of each machine fetches them from the Hub.

    Raises:
        UserError: they are not there, or the base is a GGUF file.
    """
    if source.gguf_file:
        raise UserError("strategy: pp reads safetensors files, and the base is a GGUF file: give the model it is from.")
    if Path(source.name_or_path).is_dir():
        return Path(source.name_or_path)
    from huggingface_hub import snapshot_download

    def fetch() -> Path:
        with one_sentence(source):
            return Path(
                snapshot_download(
                    source.name_or_path, revision=source.revision, allow_patterns=["*.safetensors", "*.json"]
                )
            )

    return first_on_each_machine(fetch)


def _read_config(source: ModelSource, directory: Path) -> Any:
    from transformers import AutoConfig

    with one_sentence(source):
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    config._name_or_path = source.name_or_path  # what an adapter names as its base
    return config


def _generation_config(directory: Path, model: Any) -> Any:
    from transformers import GenerationConfig

    if (directory / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(directory)
    return model.generation_config


def _cut(model: Any, ranks: PipelineRanks, micro_batches: int) -> list[Part]:
    embedding, head = layer_sizes(model)
    parts = cut_layers(len(model.model.layers), ranks.stages, embedding=embedding, head=head)
    logger.info(
        "Pipeline: %d × %d stages of %s layers (embedding and head weigh as much as %.1f and %.1f), %d rank%s each.",
        ranks.replicas,
        ranks.stages,
        " + ".join(str(len(part.layers)) for part in parts),
        embedding,
        head,
        ranks.shards,
        "" if ranks.shards == 1 else "s",
    )
    idle = 100 * bubble(ranks.stages, micro_batches)
    logger.info("%d micro-batches a step leave a stage idle for %.0f %% of it.", micro_batches, idle)
    return parts


def _check_targets(model: Any) -> None:
    """One on embedding or head would be on the first or last stage alone, and PEFT saves it in ways of its own."""
    for name, _ in model.named_parameters():
        if is_adapter(name) and ".layers." not in name:
            module = name.split(".lora_")[0].rpartition(".")[2]
            raise UserError(
                f"strategy: pp puts LoRA on layers only, and lora_target_modules names {module}: remove it."
            )


def _tied(model: Any, part: Part) -> nn.Parameter | None:
    if not model.config.tie_word_embeddings or part.stages == 1 or not (part.first or part.last):
        return None
    weight: nn.Parameter = model.model.embed_tokens.weight if part.first else model.lm_head.weight
    return weight if weight.requires_grad else None
