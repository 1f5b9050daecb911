"""Evaluates a finished run: base against tuned, written to the run's ``evaluation.json``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.core.versions import stack_versions
from hf_recipes.evaluation.compare import Scores, compare, evaluate_model, forgetting
from hf_recipes.evaluation.general import TokenisedRow
from hf_recipes.evaluation.suite import DomainRow, EvaluationSuite, draw

SCHEMA = 1
KEPT_ROWS = 64  # rows whose answers are written out, so that evaluation.json stays readable

TokeniseRows = Callable[[Path, Any], list[TokenisedRow]]
LoadModel = Callable[[str, str | None, str], Any]
LoadAdapter = Callable[[Any, Path], Any]


def evaluate_with(
    run: RunDirectory,
    tokenise_rows: TokeniseRows,
    *,
    samples: int | None = None,
    max_new_tokens: int | None = None,
    load_model: LoadModel | None = None,
    load_adapter: LoadAdapter | None = None,
) -> dict[str, Any]:
    """Compare base and tuned on the suite of the run's recipe; write and return ``evaluation.json``.

    An adapter is evaluated on one loaded model, with the adapter off for the base side; a full fine-tune loads the
    base, lets it go, and loads the result. Both sides use the tokenizer and the template of the training.

    Args:
        run: a finished run.
        tokenise_rows: turns the file of general rows into token ids and labels with the run's tokenizer.
        samples, max_new_tokens: in place of the suite's.
        load_model: ``(name or path, revision, dtype name) -> model``; by default plain `from_pretrained`.
        load_adapter: ``(model, directory) -> model with the adapter``; by default PEFT's.

    Raises:
        UserError: the recipe has no ``evaluation``, the suite is ill-formed, there is no result, or the base is absent.
    """
    started = time.perf_counter()
    facts = run.read(run.run_json)
    suite = _suite(run, facts, samples, max_new_tokens)
    rows = suite.rows()
    result = run.result
    tokenizer = _load_tokenizer(result)
    general = _general_rows(suite, tokenise_rows, tokenizer)
    dtype = compute_dtype()
    scores: dict[str, Scores] = {}
    for side, model in _sides(facts, result, dtype, load_model or load_causal_lm, load_adapter or load_peft_adapter):
        logger.info(f"Evaluating {side}: {len(rows)} answers, loss on {len(general)} general rows ({dtype}).")
        scores[side] = evaluate_model(model, tokenizer, suite, general, rows)
    _warn_of_cut_answers(scores["tuned"], suite)
    evaluation = {
        **_document(scores["base"], scores["tuned"], rows),
        "settings": {**asdict(suite), "dtype": dtype, "decoding": "greedy"},
        "versions": stack_versions(),
        "seconds": time.perf_counter() - started,
    }
    run.write(run.evaluation_json, evaluation)
    return evaluation


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
        return AutoModelForCausalLM.from_pretrained(name_or_path, revision=revision, dtype=dtype)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"Model '{name_or_path}' cannot be loaded ({reason}): put it back or restore access.") from None


def _suite(
    run: RunDirectory, facts: dict[str, Any], samples: int | None, max_new_tokens: int | None
) -> EvaluationSuite:
    settings = facts.get("recipe", {}).get("evaluation")
    if not settings:
        raise UserError(
            f"The recipe of {run.path} has no 'evaluation': add e.g. evaluation: {{domain: held_out.jsonl, "
            "schema: answer.schema.json, general: general.jsonl} to the recipe or to 'recipe' in run.json."
        )
    given = {"samples": samples, "max_new_tokens": max_new_tokens}
    return EvaluationSuite.from_dict({**settings, **{key: value for key, value in given.items() if value is not None}})


def _load_tokenizer(result: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(result)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{result} holds no tokenizer ({reason}): copy that of the training into it.") from None
    if tokenizer.chat_template is None:
        raise UserError(f"The tokenizer in {result} has no chat template: put that of the training into it.")
    return tokenizer


def _general_rows(suite: EvaluationSuite, tokenise_rows: TokeniseRows, tokenizer: Any) -> Sequence[TokenisedRow]:
    if suite.general is None:
        return []
    rows = tokenise_rows(suite.general, tokenizer)
    if not rows:
        raise UserError(f"{suite.general} gives no row to take a loss on: evaluation.general needs at least one.")
    return draw(rows, suite.samples)


def _sides(
    facts: dict[str, Any], result: Path, dtype: str, load_model: LoadModel, load_adapter: LoadAdapter
) -> Iterator[tuple[Literal["base", "tuned"], Any]]:
    """Yield the base, then the tuned model, with one model in memory at a time."""
    base = facts["base_model"]
    model = _ready(load_model(base["name_or_path"], base.get("revision"), dtype), result)
    if (result / "adapter_config.json").exists():
        model = load_adapter(model, result)
        with model.disable_adapter():
            yield "base", model
    else:
        yield "base", model
        del model
        gc.collect()
        model = _ready(load_model(str(result), None, dtype), result)
    yield "tuned", model


def load_peft_adapter(model: Any, directory: Path) -> Any:
    """The adapter of `directory` on `model`, as PEFT loads it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, directory)


def _ready(model: Any, result: Path) -> Any:
    """Put the model where it computes, and let it stop at the end tokens of the training on both sides."""
    import torch
    from transformers import GenerationConfig

    if (result / "generation_config.json").is_file():
        model.generation_config.eos_token_id = GenerationConfig.from_pretrained(result).eos_token_id
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _document(base: Scores, tuned: Scores, rows: list[DomainRow]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "table": compare(base, tuned),
        "base": _summary(base),
        "tuned": _summary(tuned),
        "change": _changes(base, tuned),
        "rows": [_row(index, row, base, tuned) for index, row in enumerate(rows[:KEPT_ROWS])],
    }


def _summary(scores: Scores) -> dict[str, Any]:
    return {
        "domain": asdict(scores.domain),
        "general": None if scores.general is None else asdict(scores.general),
        "cut_answers": scores.cut,
        "seconds_per_answer": scores.seconds_per_answer,
        "tokens_per_second": scores.tokens_per_second,
    }


def _changes(base: Scores, tuned: Scores) -> dict[str, float | None]:
    """Tuned minus base: shares in [-1, 1], the general loss in nats per token."""
    changes: dict[str, float | None] = {"forgetting": forgetting(base, tuned)}
    for name in ("parses", "fits_schema", "fields_right", "exact"):
        before, after = getattr(base.domain, name), getattr(tuned.domain, name)
        changes[name] = None if before is None or after is None else after - before
    return changes


def _row(index: int, row: DomainRow, base: Scores, tuned: Scores) -> dict[str, Any]:
    sides = {
        side: {"answer": scores.answers[index], **asdict(scores.verdicts[index])}
        for side, scores in (("base", base), ("tuned", tuned))
    }
    return {"line": row.number, "prompt": row.messages, "reference": row.reference, **sides}


def _warn_of_cut_answers(tuned: Scores, suite: EvaluationSuite) -> None:
    if tuned.cut:
        logger.warning(
            f"{tuned.cut} of {tuned.domain.rows} tuned answers met the limit of {suite.max_new_tokens} tokens without "
            "an end token: raise --max-new-tokens, or check by `hf-recipes inspect` that the end of turn is trained."
        )
