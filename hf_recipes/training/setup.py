"""What every kind of run starts from and ends with: the recipe resolved on this machine, its record, its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_recipes.checkpoints.facts import batch_facts
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.data_parallel import data_parallel_ranks
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.core.versions import stack_versions
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.precision import Hardware, Precision, describe, detect_hardware
from hf_recipes.models.source import ModelSource, find_model
from hf_recipes.models.stored import WHOLE_METHODS
from hf_recipes.models.tokenizer import load_recipe_tokenizer
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.arguments import build_arguments, global_batch_size, recipe_precision
from hf_recipes.training.kept_start import make_result_plain, start_facts
from hf_recipes.training.launched import launched_layout, run_layout
from hf_recipes.training.method_limits import check_loraplus, check_loss_kernel, check_method
from hf_recipes.training.output import choose_output, record_run
from hf_recipes.training.parallel_defaults import check_device, set_parallel_defaults
from hf_recipes.training.parallelism import check_context_parallel, check_tensor_parallel
from hf_recipes.training.strategy_file import check_strategy, recipe_sizes
from hf_recipes.training.trackers import check_trackers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import ModelConfig, SFTConfig

    from hf_recipes.recipe.keys import RecipeArguments


@dataclass(frozen=True)
class Setup:
    """What is fixed before anything is loaded: the recipe in HF's dataclasses, the machine, the place to write."""

    recipe: Recipe
    arguments: SFTConfig
    model_settings: ModelConfig
    ours: RecipeArguments
    hardware: Hardware
    precision: Precision
    run: RunDirectory

    def load_tokenizer(self) -> tuple[ModelSource, PreTrainedTokenizerBase]:
        """Find the base (rank 0 first, so that it is fetched once) and load its tokenizer."""
        name, revision = self.model_settings.model_name_or_path, self.model_settings.model_revision
        source = from_main(lambda: find_model(name, revision))
        tokenizer = load_recipe_tokenizer(self.recipe.values)
        return source, tokenizer

    def manifest_facts(self, source: ModelSource) -> dict[str, Any]:
        """What every manifest of the run says about where its weights come from."""
        try:
            base = self.run.read(self.run.run_json)["base_model"]  # with the hashes of its files
        except (UserError, KeyError):
            base = {"name_or_path": source.name_or_path, "revision": source.revision}
        return {
            "recipe": self.recipe.fingerprint(),
            "base_model": base,
            "seed": self.arguments.seed,
            "data_seed": self.arguments.data_seed,
            "batch": batch_facts(self.arguments),
            "versions": stack_versions(),
        }

    def save_result(self, trainer: Any, source: ModelSource) -> None:
        """Write adapter/ or model/ with tokenizer, template and generation config; then its manifest; then verify it.

        Raises `CheckFailed` on all ranks when what was written does not verify.
        """
        target = self.run.model if self.ours.method in WHOLE_METHODS else self.run.adapter
        trainer.save_model(str(target))
        generation = getattr(trainer.accelerator.unwrap_model(trainer.model), "generation_config", None)
        facts = {**self.manifest_facts(source), "step": trainer.state.global_step}

        def finish() -> None:
            if generation is not None:
                generation.save_pretrained(target)
            make_result_plain(self.run.path, self.ours.method, self.ours.init_lora_weights, target)
            write_manifest(target, facts)
            report = verify_checkpoint(target)
            if not report.ok:
                raise CheckFailed(f"the result in '{target}' is damaged: {report.problems[0]}")

        from_main(finish)


def set_up(recipe: Recipe) -> Setup:
    """Resolve a recipe against this machine and choose the run directory; joins the process group.

    Raises:
        UserError: the recipe does not fit the machine or the HF dataclasses, or the run directory is taken.
    """
    check_method(recipe)
    check_trackers(recipe.get("report_to"))
    hardware = detect_hardware()
    check_loss_kernel(recipe, hardware)
    precision = recipe_precision(recipe, hardware)
    arguments, model_settings, ours = build_arguments(recipe, hardware, precision)
    check_strategy(ours.strategy, launched_layout(arguments), recipe_sizes(ours))
    layout = run_layout(arguments)
    check_device(layout, hardware.device)
    check_tensor_parallel(recipe, layout)
    check_context_parallel(recipe, layout)
    check_loraplus(recipe, layout)
    set_parallel_defaults(arguments, layout, precision)
    run = RunDirectory(from_main(lambda: choose_output(recipe)))
    arguments.output_dir = str(run.path)
    return Setup(recipe, arguments, model_settings, ours, hardware, precision, run)


def _sharers(ranks: int, processes: int) -> str:
    """``2 processes``, or ``2 groups of 4 processes`` where those of a group see the same rows."""
    if ranks == processes:
        return f"{ranks} process{'' if ranks == 1 else 'es'}"
    return f"{ranks} group{'' if ranks == 1 else 's'} of {processes // ranks} processes"


def tell_setup(setup: Setup, source: ModelSource, data_table: str) -> None:
    """Say what is about to run; rank 0 alone is heard."""
    arguments, precision = setup.arguments, setup.precision
    logger.info("Run directory: %s", setup.run.path)
    logger.info("Base model: %s (%s)", setup.model_settings.model_name_or_path, source.label)
    logger.info("Precision: %s%s", describe(precision), f"; {precision.why}" if precision.why else "")
    logger.info(
        "Global batch: %d = %d a device × %d accumulated × %s",
        global_batch_size(arguments),
        arguments.per_device_train_batch_size,
        arguments.gradient_accumulation_steps,
        _sharers(data_parallel_ranks(arguments), int(arguments.world_size)),
    )
    if idle := setup.recipe.idle_keys():
        logger.warning("Without effect with method: %s: %s.", setup.ours.method, ", ".join(idle))
    if arguments.torch_compile:
        logger.info("torch_compile: the first steps compile the model, which takes minutes on a CPU.")
    logger.info("%s", data_table)


def write_run_record(setup: Setup, source: ModelSource, model: Any, **facts: Any) -> None:
    """Count what is trained, and write run.json (rank 0)."""
    trainable, total = count_parameters(model)
    logger.info("Training %s of %s parameters (%.2f %%).", f"{trainable:,}", f"{total:,}", 100 * trainable / total)
    if not is_main():
        return
    record_run(
        setup.run,
        setup.recipe,
        base_model=source.identity(),
        hardware=setup.hardware,
        precision=setup.precision,
        world_size=setup.arguments.world_size,
        global_batch_size=global_batch_size(setup.arguments),
        trainable_parameters=trainable,
        total_parameters=total,
        **start_facts(setup.run.path, setup.ours.method, setup.ours.init_lora_weights),
        **facts,
    )


def start_checkpoint_keeper(setup: Setup, source: ModelSource) -> CheckpointKeeper:
    """The callback that writes manifests, verifies and rotates, as the recipe asks."""
    return CheckpointKeeper(
        level=setup.ours.verify_checkpoints,
        save_total_limit=setup.arguments.save_total_limit,
        extra=setup.manifest_facts(source),
        trial_save=setup.ours.trial_save,
    )
