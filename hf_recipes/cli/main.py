"""`hf-recipes VERB …`: finds the verb, turns the errors that are meant into sentences and exit codes."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from hf_recipes.core.errors import CheckFailed, Preempted, UserError, file_problem, nearest
from hf_recipes.core.log import show_on_console
from hf_recipes.core.printable import outlive_reader, printable
from hf_recipes.core.version import __version__

# Verb → module of the same name under hf_recipes.cli, and one line of help; in the order of a user's day.
VERBS: dict[str, str] = {
    "quickstart": "train, verify, evaluate and merge a small real model, end to end, on any machine",
    "ls": "list the shipped recipes",
    "cp": "copy a shipped recipe to edit it",
    "convert": "make a recipe of an Axolotl, LLaMA-Factory, ms-swift or TRL configuration",
    "plan": "will it fit, on which devices, how long, at what cost, with which parallelism",
    "inspect": "show what a recipe trains on: real batches as text, the trained part marked",
    "prepare": "clean, tokenise, split and mix a recipe's data ahead of the run",
    "overfit": "let the model learn a few rows by heart: is the set-up sound, and if not, what is broken",
    "profile": "measure where a recipe's steps spend time and memory, and say what to change",
    "sft": "fine-tune by a recipe (accelerate launch -m hf_recipes.sft, with checks before and an exit code after)",
    "classify": "fine-tune a text classifier by a recipe",
    "sweep": "train a recipe with several values of some keys, side by side; find a learning rate",
    "launch": "write the job files of a scheduler from one recipe: Slurm, Kubernetes, SkyPilot, Ray",
    "verify": "check a checkpoint, adapter or model for damage",
    "evaluate": "compare base and tuned model on domain, format and general text",
    "merge": "merge an adapter into its base, tensor by tensor, and prove it",
    "export": "write a run's result as adapter, merged model, 4-bit or GGUF; load each back and measure it",
    "report": "draw the curves and write the page of a run",
    "doctor": "look at this machine, a run or any trainer's log (or the network) and say what is wrong",
}
_MODULES = {"ls": "recipes_list", "cp": "recipes_copy"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 1 a check failed, 2 wrong use, 75 stopped on request and to
    be resumed."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    show_on_console()
    outlive_reader()
    try:
        return _dispatch(argv)
    except (UserError, CheckFailed, Preempted) as error:
        print(f"hf-recipes: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("hf-recipes: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"hf-recipes: {printable(file_problem(error))}", file=sys.stderr)
        return UserError.exit_code


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        print(f"hf-recipes {__version__}")
        return 0
    verb, *rest = argv
    if verb not in VERBS:
        raise UserError(f"unknown verb '{verb}'{nearest(verb, VERBS)}; `hf-recipes --help` lists them all.")
    return _run(verb, importlib.import_module(module_of(verb)), rest)


def module_of(verb: str) -> str:
    """The module that holds a verb."""
    return f"hf_recipes.cli.{_MODULES.get(verb, verb)}"


def _run(verb: str, module: ModuleType, rest: list[str]) -> int:
    parser = _Parser(prog=f"hf-recipes {verb}", description=module.HELP)
    module.add_arguments(parser)
    rest = [_spelled(argument, parser) for argument in rest]
    if getattr(module, "TAKES_RECIPE_KEYS", False):
        options, keys = parser.parse_known_args(rest)
        stands_first = bool(keys) and not keys[0].startswith("-") and not getattr(module, "TAKES_TARGET", False)
        if stands_first and getattr(options, "config", "") is None:
            options.config = keys.pop(0)  # `sft my.yaml` for `sft --config my.yaml`
        options.recipe_keys = keys
    else:
        options = parser.parse_args(rest)
    return module.run(options)


def _spelled(argument: str, parser: argparse.ArgumentParser) -> str:
    """A flag as the verb spells it: with hyphens where it was written with underscores, or the other way round."""
    name, equals, value = argument.partition("=")
    known = parser._option_string_actions
    if not name.startswith("--") or name in known:
        return argument
    spellings = (f"--{name[2:].replace('_', '-')}", f"--{name[2:].replace('-', '_')}")
    return next((spelling + equals + value for spelling in spellings if spelling in known), argument)


class _Parser(argparse.ArgumentParser):
    """Wrong use in one sentence, without argparse's usage block, and no guessing of abbreviated flags."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UserError(f"{self.prog.removeprefix('hf-recipes ')}: {message} (see `{self.prog} --help`).")


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb.ljust(width)}  {text}" for verb, text in VERBS.items()]
    return "\n".join(
        ["usage: hf-recipes VERB [options]", "", *lines, "", "`hf-recipes VERB --help` shows a verb's options."]
    )


if __name__ == "__main__":
    sys.exit(main())
