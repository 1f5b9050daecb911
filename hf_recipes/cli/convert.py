"""`hf-recipes convert`: another tool's configuration as a recipe, and a list of what has no counterpart."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.convert import TOOL_NAMES
from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    from hf_recipes.convert.engine import Conversion

HELP = """Make a recipe of another tool's configuration, and say what became of every key.

  hf-recipes convert FILE                    Axolotl's YAML, LLaMA-Factory's YAML or JSON, the YAML of `trl sft`, or a
                                             script with one `swift sft …` or `llamafactory-cli train …` command
  hf-recipes convert FILE --output my.yaml   where the recipe goes (default: recipe.yaml here); never over a file

The recipe says what the file says, and what that tool does by itself where ours would do otherwise.
"""
_YAML = (".yaml", ".yml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, whose it is, where the recipe goes."""
    parser.add_argument("file", metavar="FILE", help="the configuration, or a script with the command")
    parser.add_argument("--from", dest="tool", choices=TOOL_NAMES, help="whose it is (default: told from its keys)")
    parser.add_argument("--output", default="recipe.yaml", metavar="RECIPE", help="the recipe's file (recipe.yaml)")
    parser.add_argument("--json", action="store_true", help="print what became of every key as JSON")


def run(options: argparse.Namespace) -> int:
    """Convert, check that the recipe loads, write it, and print the tables."""
    from hf_recipes.convert.recipe_text import recipe_text
    from hf_recipes.convert.table import conversion_json, conversion_text
    from hf_recipes.core.files import json_safe

    source, output = Path(options.file), Path(options.output)
    if output.exists():
        raise UserError(f"'{output}' exists already: give another name with --output, nothing was written.")
    conversion = _convert(source, output, options.tool)
    _require(conversion, source)
    text = recipe_text(conversion, source.name, str(output))
    _write_checked(text, output, lambda sentence: _in_their_words(sentence, conversion, source))
    if options.json:
        print(json.dumps(json_safe(conversion_json(conversion, str(output))), indent=1, ensure_ascii=False))
        return 0
    print(conversion_text(conversion))
    print(f"\nWritten to {output}. Next: hf-recipes inspect --config {output}")
    return 0


def _convert(source: Path, output: Path, tool: str | None) -> Conversion:
    """Read the file, find out whose it is, and convert it."""
    from hf_recipes.convert.answers import Config
    from hf_recipes.convert.engine import convert
    from hf_recipes.convert.places import finder, reader
    from hf_recipes.convert.tools import TOOLS, tell_tool

    values, told = _read(source)
    chosen = tool or told
    config = Config(values, source, finder(source, output), reader(source))
    return convert(config, TOOLS[chosen] if chosen else tell_tool(values, source))


def _read(source: Path) -> tuple[dict[str, Any], str | None]:
    """The keys in a file, and the tool where a command in it says whose they are."""
    from hf_recipes.convert.shell import parse_command
    from hf_recipes.core.files import refuse_special
    from hf_recipes.recipe.yaml_lines import load_yaml, parse_scalar

    if source.is_dir():
        raise UserError(f"'{source}' is a directory: name the configuration file in it.")
    try:
        refuse_special(source)
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"'{source}' is not UTF-8 text (byte {error.start}): save the configuration as UTF-8, or name another file."
        ) from None
    if not "".join(line.partition("#")[0] for line in text.splitlines()).strip():
        raise UserError(f"'{source}' holds no keys: give the configuration or command that one trains with.")
    if source.suffix.lower() in _YAML:
        return load_yaml(source)[0], None
    if source.suffix.lower() != ".json":
        return parse_command(text, source, parse_scalar)
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UserError(f"{source}: not valid JSON ({error}): mend it there.") from None
    if not isinstance(values, dict):
        raise UserError(f"{source}: a configuration is keys and values, this file holds a {type(values).__name__}.")
    return values, None


def _require(conversion: Conversion, source: Path) -> None:
    """A recipe needs a model and data."""
    for key, what in (("model_name_or_path", "model"), ("datasets", "data")):
        if not conversion.values.get(key):
            title = conversion.tool.title
            raise UserError(f"{source}: no {what} of {title} is named in it: give the file that one trains with.")


def _in_their_words(sentence: str, conversion: Conversion, source: Path) -> str:
    """What is wrong with the recipe, by the key and file it came from."""
    named = re.search(r"'(\w+)'", sentence)
    origin = conversion.origins.get(named[1]) if named else None
    there = f" ('{origin}' in {source})" if origin else f" (made of {source})"
    return sentence[: named.end()] + there + sentence[named.end() :] if named else sentence + there


def _write_checked(text: str, output: Path, reword: Callable[[str], str]) -> None:
    """Write the recipe under its name once it loads, data sources and thresholds included; else leave nothing."""
    new = [folder for folder in output.parents if not folder.exists()]
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.part")
    draft.write_text(text, encoding="utf-8")
    try:
        _check(draft)
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except UserError as error:
        sentence = re.sub(rf"{re.escape(str(draft))}(?: line \d+)?: ", "", str(error))
        raise UserError(f"No recipe was written: {reword(sentence)}") from None
    finally:
        draft.unlink()
        for folder in new:
            with contextlib.suppress(OSError):  # the recipe is in it
                folder.rmdir()


def _check(recipe_file: Path) -> None:
    from hf_recipes.callbacks.config import WatchConfig
    from hf_recipes.data.clean.config import CleanConfig
    from hf_recipes.data.reading.sources import as_specs
    from hf_recipes.recipe.resolve import load_recipe

    recipe = load_recipe(str(recipe_file))
    as_specs(recipe.values["datasets"])
    WatchConfig.from_dict(recipe.get("watch"))
    CleanConfig.from_mapping(recipe.get("clean"))
