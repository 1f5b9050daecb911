"""The page of all recipe keys, made from the table: ``python -m hf_recipes.recipe.key_page > docs/keys.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hf_recipes.recipe.defaults import default_told
from hf_recipes.recipe.key_table import KeySpec, load_key_table
from hf_recipes.recipe.validate import AUTO_KEYS, REFUSED_KEYS, UNSUPPORTED_VALUES

_OWNERS = {
    "RecipeArguments": ("Keys of hf_recipes", "What the stack has no key for, and the defaults that differ from it."),
    "ModelConfig": ("Keys of TRL's `ModelConfig`", "The base model, its dtype, LoRA and quantisation."),
    "SFTConfig": (
        "Keys of TRL's `SFTConfig` and transformers' `TrainingArguments`",
        "Names, types and meanings are theirs; the help is theirs too, but where a key does something else here.",
    ),
}
# Keys whose help, as the stack has it, would tell something untrue of a recipe.
_MEANING_HERE: dict[str, str] = {
    "dtype": (
        "What the weights are loaded in. Left out, an adapter's base is in 16 bits, and what is trained in full in "
        "fp32 under bf16 autocast: bf16 weights have no room for small updates. Short names (`bf16`) are understood."
    ),
    "resume_from_checkpoint": (
        "`last`: go on from the newest good checkpoint of output_dir; `auto`: the same, but start where there is none; "
        "or a checkpoint's path. Left out, a new run."
    ),
    "max_length": (
        "Tokens of the longest sample. A conversation whose answer would be cut is dropped and counted, not cut "
        "(`overlong` decides); plain text is cut or split, a text to classify is cut. Packed rows are filled up to it. "
        "Empty: no limit."
    ),
    "chat_template_path": "A Jinja file that replaces the tokenizer's chat template; it is saved with the result.",
    "activation_checkpointing": (
        "Compute layers again in the backward pass in place of keeping what they made: less memory, about a quarter "
        "slower. `auto`, the default: no more of them than memory asks for; true: all; false: none."
    ),
    "gradient_checkpointing": "The older name of `activation_checkpointing`, and the same key.",
    "save_total_limit": "Good checkpoints that are kept; older ones are removed, never the last verified one.",
    "enable_jit_checkpoint": "Not needed: at SIGTERM a run saves anyway, on all ranks after the same step.",
}
_LONGEST_DEFAULT = 60


def render_keys(table: Mapping[str, KeySpec]) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Mapping[str, KeySpec]) -> Iterator[str]:
    yield "# Every key of a recipe"
    yield ""
    yield (
        "`hf-recipes sft --help-all` prints this list. A recipe is a flat YAML of these keys; any of them can be given "
        "as `--key value` too, nested ones dotted, and an unknown key is answered with the nearest one. What a key "
        "costs stands beside it in the [shipped recipes](recipes.md)."
    )
    yield ""
    yield (
        f"{len(REFUSED_KEYS)} keys of TRL and transformers are refused, since they would do nothing here or undo what "
        "other keys decide; the sentence says what to write in their place. They stand "
        "[at the end](#keys-that-are-refused)."
    )
    for owner, (title, note) in _OWNERS.items():
        specs = [spec for spec in table.values() if spec.owner == owner and spec.name not in REFUSED_KEYS]
        yield from ("", f"## {title}", "", note, "")
        yield "| key | values | default | meaning |"
        yield "| --- | --- | --- | --- |"
        for spec in specs:
            yield f"| `{spec.name}` | {_values(spec)} | {_default(spec)} | {_cell(_meaning(spec))} |"
    yield from ("", "## Keys that are refused", "")
    yield "| key | in its place |"
    yield "| --- | --- |"
    for name, cure in REFUSED_KEYS.items():
        yield f"| `{name}` | {_cell(cure)} |"


def _meaning(spec: KeySpec) -> str:
    told = _MEANING_HERE.get(spec.name, spec.help)
    if spec.name not in UNSUPPORTED_VALUES:
        return told
    allowed = next(value for value in UNSUPPORTED_VALUES[spec.name] if value is not None)
    return f"{told} Refused here with any value but `{json.dumps(allowed)}`: leave the key out."


def _values(spec: KeySpec) -> str:
    if spec.choices:
        others = [kind for kind in spec.kinds if kind not in ("str", "null")]
        return _cell(" ".join([*(f"`{choice}`" for choice in spec.choices), *others]))
    auto = ["auto"] if spec.name in AUTO_KEYS else []
    return ", ".join([*(kind for kind in spec.kinds if kind != "null"), *auto]) or "any"


def _default(spec: KeySpec) -> str:
    """The older name of a key has no default of its own."""
    return "" if spec.name == "gradient_checkpointing" else default_told(spec.name, spec.default, _value)


def _value(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`".replace("|", "\\|") if len(text) <= _LONGEST_DEFAULT else "see the help"


def _cell(text: str) -> str:
    for character in "<>[]*_|" if "`" not in text else "<>|":
        text = text.replace(character, f"\\{character}")
    return text


if __name__ == "__main__":
    print(render_keys(load_key_table()), end="")
