"""The page of all recipe keys, made from the table: ``python -m hf_recipes.recipe.key_page > docs/keys.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hf_recipes.recipe.defaults import default_told
from hf_recipes.recipe.key_table import KeySpec, load_key_table

_OWNERS = {
    "RecipeArguments": ("Keys of hf_recipes", "What the stack has no key for, and the defaults that differ from it."),
    "ModelConfig": ("Keys of TRL's `ModelConfig`", "The base model, its dtype, LoRA and quantisation."),
    "SFTConfig": (
        "Keys of TRL's `SFTConfig` and transformers' `TrainingArguments`",
        "Names, types and meanings are theirs; the help is theirs too.",
    ),
}
_LONGEST_DEFAULT = 60


def render_keys(table: Mapping[str, KeySpec]) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Mapping[str, KeySpec]) -> Iterator[str]:
    yield "# Every key of a recipe"
    yield ""
    yield (
        "A recipe is a flat YAML of these keys; any of them can be given as `--key value` too, nested ones dotted. "
        "`hf-recipes sft --help` prints this list, and an unknown key is answered with the nearest one. What a key "
        "costs stands beside it in the [shipped recipes](recipes.md)."
    )
    for owner, (title, note) in _OWNERS.items():
        specs = [spec for spec in table.values() if spec.owner == owner]
        yield from ("", f"## {title}", "", note, "")
        yield "| key | values | default | meaning |"
        yield "| --- | --- | --- | --- |"
        for spec in specs:
            default = default_told(spec.name, spec.default, _value)
            yield f"| `{spec.name}` | {_values(spec)} | {default} | {_cell(spec.help)} |"


def _values(spec: KeySpec) -> str:
    if spec.choices:
        others = [kind for kind in spec.kinds if kind not in ("str", "null")]
        return _cell(" ".join([*(f"`{choice}`" for choice in spec.choices), *others]))
    return ", ".join(kind for kind in spec.kinds if kind != "null") or "any"


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
