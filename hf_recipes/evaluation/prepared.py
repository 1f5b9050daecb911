"""An evaluation checked and ready, short of the weights of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.four_bits import read_rightly
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.evaluation.asking import Questions
from hf_recipes.evaluation.gate import Condition, check_names
from hf_recipes.evaluation.identity import model_identity
from hf_recipes.evaluation.judges.choices import read_choices
from hf_recipes.evaluation.judging import Judges
from hf_recipes.evaluation.kept import KeptAnswers
from hf_recipes.evaluation.likelihood import TokenisedRow, supervised_tokens
from hf_recipes.evaluation.measures import names_beforehand
from hf_recipes.evaluation.rows import draw, read_instruction_rows
from hf_recipes.evaluation.sides import LoadAdapter, LoadModel, Side, find_sides
from hf_recipes.evaluation.suite import EvaluationSuite

TokeniseRows = Callable[[SourceSpec, Any], list[TokenisedRow]]


@dataclass(frozen=True)
class Choices:
    """What a call of the verb changes.

    Args:
        samples, max_new_tokens: in place of the recipe's.
        against: see `sides.find_sides`.
        gate: conditions in place of the recipe's.
    """

    samples: int | None = None
    max_new_tokens: int | None = None
    against: tuple[str, ...] | None = None
    gate: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Loaders:
    """What the evaluation needs of other rooms.

    Args:
        rows: turns the file of general rows into token ids and labels with a tokenizer.
        model: ``(name or path, revision, dtype name) -> model``.
        adapter: ``(model, directory) -> model with the adapter``.
    """

    rows: TokeniseRows
    model: LoadModel
    adapter: LoadAdapter


@dataclass(frozen=True)
class Evaluation:
    """An evaluation checked and ready: its suite and judges, its models and what each is asked."""

    run: RunDirectory
    judges: Judges
    sides: tuple[Side, ...]
    tokenizers: Mapping[str, Any]
    questions: Mapping[str, Questions]
    dtype: str
    gate: tuple[Condition, ...]

    @property
    def suite(self) -> EvaluationSuite:
        return self.judges.suite

    @property
    def reference(self) -> str:
        """The model that the others are compared with."""
        return self.sides[0].name

    def kept(self, side: Side) -> KeptAnswers:
        """The answer file of a model."""
        models = {
            "model": model_identity(side.model, side.revision),
            "adapter": None if side.adapter is None else model_identity(side.adapter, None),
            "tokenizer": model_identity(side.tokenizer, None),
        }
        suite = self.suite
        asked = {"dtype": self.dtype, "max_new_tokens": suite.max_new_tokens, "stop": list(suite.stop)}
        path = self.run.path / "evaluation" / f"{side.name}.jsonl"
        return KeptAnswers(path, {"models": models, "asked": asked})


def prepare_evaluation(run: RunDirectory, loaders: Loaders, choices: Choices) -> Evaluation:
    """Check and read everything that an evaluation needs, short of the models' weights.

    Raises:
        UserError: see `evaluate_with`.
    """
    facts = run.read(run.run_json)
    suite = suite_of(run, facts, choices)
    judges = Judges.of(suite)
    sides = find_sides(run, facts, choices.against)
    gate = choices.gate or suite.gate
    _check_gate(gate, suite, sides)
    common = Questions(
        domain=suite.rows(),
        instructions=[]
        if suite.instructions is None
        else draw(read_instruction_rows(suite.instructions), suite.samples),
        choices=[] if suite.choices is None else draw(read_choices(suite.choices), suite.samples),
        tasks=suite.tasks,
        documents=suite.samples,
    )
    for row in common.domain[:1]:  # a judge that fails, such as the user's own function, is told now
        judges.domain(row.reference, row)
    tokenizers = {place: _load_tokenizer(place) for place in dict.fromkeys(side.tokenizer for side in sides)}
    general = {place: _general_rows(suite, loaders.rows, tokenizer) for place, tokenizer in tokenizers.items()}
    questions = {side.name: replace(common, general=general[side.tokenizer]) for side in sides}
    return Evaluation(run, judges, tuple(sides), tokenizers, questions, compute_dtype(), gate)


def compute_dtype() -> str:
    """The dtype to evaluate in: bf16 where the hardware computes in it, else fp16 on a GPU, fp32 on a CPU."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"


def load_causal_lm(name_or_path: str, revision: str | None, dtype: str) -> Any:
    """A causal LM by `from_pretrained`; one that cannot be found is a `UserError`."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            name_or_path, revision=revision, dtype=dtype, trust_remote_code=False
        )
    except OSError as error:
        raise UserError(
            f"Model '{name_or_path}' cannot be loaded ({first_line(error)}): put it back or restore access."
        ) from None
    if (misread := read_rightly(model, model.dtype)) is not None:
        logger.warning("%s: those of '%s' are computed in %s, same values.", misread, name_or_path, dtype)
    return model


def load_peft_adapter(model: Any, directory: Path) -> Any:
    """The adapter of `directory` on `model`, as PEFT loads it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, directory)


def suite_of(run: RunDirectory, facts: Mapping[str, Any], choices: Choices) -> EvaluationSuite:
    """The suite of a run's recipe, with what the call changes.

    Raises:
        UserError: the recipe has none, or it is ill-formed.
    """
    recipe = facts.get("recipe") if isinstance(facts, Mapping) else None
    settings = recipe.get("evaluation") if isinstance(recipe, Mapping) else None
    if not settings:
        raise UserError(
            f"The recipe of {run.path} has no 'evaluation': write e.g. evaluation: {{domain: held_out.jsonl, "
            "schema: answer.schema.json, general: general.jsonl} into a recipe, and give it with --config RECIPE."
        )
    suite = EvaluationSuite.from_dict(settings)
    samples, max_new_tokens = choices.samples or suite.samples, choices.max_new_tokens or suite.max_new_tokens
    return replace(suite, samples=samples, max_new_tokens=max_new_tokens)


def _check_gate(gate: Sequence[Condition], suite: EvaluationSuite, sides: Sequence[Side]) -> None:
    """A name that cannot be right is told before an hour of answers."""
    if gate and (names := names_beforehand(suite)) is not None:
        check_names(gate, names, [side.name for side in sides])


def _load_tokenizer(place: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        if not Path(place).exists():
            raise UserError(f"'{place}' is not here, nor can it be had from the Hub ({reason}): name a path.") from None
        raise UserError(f"{place} holds no tokenizer ({reason}): copy that of the training into it.") from None
    if tokenizer.chat_template is None:
        raise UserError(f"The tokenizer in {place} has no chat template: put that of the training into it.")
    return tokenizer


def _general_rows(suite: EvaluationSuite, tokenise_rows: TokeniseRows, tokenizer: Any) -> Sequence[TokenisedRow]:
    if suite.general is None:
        return []
    rows = [row for row in tokenise_rows(suite.general, tokenizer) if supervised_tokens(row["labels"])]
    if not rows:
        raise UserError(f"{suite.general.path} gives no row to take a loss on: evaluation.general needs at least one.")
    return draw(rows, suite.samples)
