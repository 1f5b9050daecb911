"""The models of an evaluation: the run's base, its result, what was merged from it, and any other."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.files import read_json
from hf_recipes.core.run_directory import RunDirectory, is_run

BASE, TUNED = "base", "tuned"
_NAME = re.compile(r"[A-Za-z][\w.-]*")
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_TAKEN = {TUNED, "line", "prompt", "reference"}  # keys of a row in evaluation.json

LoadModel = Callable[[str, str | None, str], Any]
LoadAdapter = Callable[[Any, Path], Any]


@dataclass(frozen=True)
class Side:
    """One model.

    Args:
        name: its column's head.
        model: directory, file or Hub name of its weights.
        revision: of a Hub name.
        adapter: what is put on it.
        tokenizer: where the tokenizer, its template and the end tokens are.
    """

    name: str
    model: str
    revision: str | None
    adapter: Path | None
    tokenizer: str


def find_sides(run: RunDirectory, facts: dict[str, Any], against: Sequence[str] | None) -> list[Side]:
    """The models to compare, the reference first: the base if it is among them, else the first of `against`.

    Args:
        run: a finished run; its result is always there, under the name ``tuned``.
        facts: its run.json.
        against: ``base``, ``merged`` (all that was merged), ``merged-bf16`` and the like, ``NAME=PATH`` or a path: a
            run directory, an adapter, a model or a Hub name. None for the base and all that was merged.

    Raises:
        UserError: there is no result, or no such model.
    """
    merged = {place.name: place for place in sorted(run.path.glob("merged-*")) if (place / "config.json").is_file()}
    wanted = [BASE, *merged] if against is None else list(against)
    if "merged" in wanted:
        if not merged:
            raise UserError(f"--against merged: {run.path} holds no merged model: run hf-recipes merge first.")
        wanted = [each for name in wanted for each in (merged if name == "merged" else [name])]
    tuned = _result(TUNED, run, facts)
    others = [_named(each, facts, tuned, merged) for each in dict.fromkeys(wanted)]
    others.sort(key=lambda side: side.name != BASE)
    names = [side.name for side in others]
    if double := next((name for name in names if names.count(name) > 1 or name in _TAKEN), None):
        raise UserError(f"--against: the name '{double}' is taken: write OTHER_NAME=PATH.")
    return [*others[:1], tuned, *others[1:]]


def _named(text: str, facts: dict[str, Any], tuned: Side, merged: dict[str, Path]) -> Side:
    if text == BASE:
        base = facts["base_model"]
        return Side(BASE, base["name_or_path"], base.get("revision"), None, tuned.tokenizer)
    if text in merged:
        return Side(text, str(merged[text]), None, None, tuned.tokenizer)
    name, equals, path = text.partition("=")
    if not equals:
        name, path = Path(text).name, text
    if not _NAME.fullmatch(name):
        raise UserError(f"--against {text}: '{name}' is no name for a column: write NAME=PATH, of letters and digits.")
    if path == BASE or path in merged:
        return replace(_named(path, facts, tuned, merged), name=name)
    known = [BASE, "merged", *merged]
    if not path or (not equals and "/" not in path and not Path(path).exists()):
        raise UserError(f"--against {text}: no model of that name or path{nearest(text, known)}: write NAME=PATH.")
    if not Path(path).exists() and not _HUB_NAME.fullmatch(path):
        raise UserError(f"--against {text}: '{path}' does not exist: name a run, an adapter or a model.")
    return _other(name, path)


def _other(name: str, text: str) -> Side:
    path = Path(text)
    if is_run(path):
        run = RunDirectory(path)
        return _result(name, run, run.read(run.run_json))
    config = path / "adapter_config.json"
    if not config.is_file():
        return Side(name, text, None, None, text)
    try:
        base = read_json(config)
        return Side(name, str(base["base_model_name_or_path"]), base.get("revision"), path, text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{config} does not say which base the adapter belongs to: restore it.") from None


def _result(name: str, run: RunDirectory, facts: dict[str, Any]) -> Side:
    result = run.result
    base = facts.get("base_model") if isinstance(facts, dict) else None
    if not isinstance(base, dict) or not base.get("name_or_path"):
        raise UserError(f"{run.run_json} names no base_model: restore the file, or name another run.")
    if not (result / "adapter_config.json").exists():
        return Side(name, str(result), None, None, str(result))
    return Side(name, base["name_or_path"], base.get("revision"), result, str(result))


def with_each_model(
    sides: Sequence[Side],
    dtype: str,
    load_model: LoadModel,
    load_adapter: LoadAdapter,
    use: Callable[[Side, Any], None],
) -> None:
    """Load the models one after the other and hand each to `use`; one is in memory at a time.

    An adapter is put on the base that was loaded for the side before it, where it is the same one.
    """
    held: tuple[tuple[str, str | None], Any] | None = None
    for side in sides:
        place = (side.model, side.revision)
        if held is None or held[0] != place:
            held = None
            gc.collect()
            held = (place, placed(load_model(side.model, side.revision, dtype)))
        model = held[1]
        end_as_trained(model, side.tokenizer)
        if side.adapter is not None:
            held = None  # it is not the base's own any more
            model = load_adapter(model, side.adapter)
        use(side, model)
        del model


def placed(model: Any) -> Any:
    """The model where it computes; a quantised one is there since it was loaded."""
    import torch

    quantized = getattr(model, "is_quantized", False)
    return model if quantized else model.to("cuda" if torch.cuda.is_available() else "cpu")


def end_as_trained(model: Any, tokenizer: str) -> None:
    """Let a model stop at the end tokens that stand beside its tokenizer, the training's where it is the run's."""
    from transformers import GenerationConfig

    if (Path(tokenizer) / "generation_config.json").is_file():
        model.generation_config.eos_token_id = GenerationConfig.from_pretrained(tokenizer).eos_token_id
