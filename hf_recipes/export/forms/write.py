"""Write the forms that were asked for, one after the other; what fails is told and does not lose the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, UserError, file_problem
from hf_recipes.core.free_space import directory_bytes
from hf_recipes.core.log import logger
from hf_recipes.export.forms.adapter_form import write_adapter_form
from hf_recipes.export.forms.bnb_form import write_bnb_form
from hf_recipes.export.forms.gguf_form import write_gguf_form
from hf_recipes.export.forms.merged_form import write_merged_form, write_ollama_file
from hf_recipes.export.forms.names import BNB_BITS, Form, Kind
from hf_recipes.export.forms.sources import Sources


@dataclass
class WrittenForm:
    """A form as it was written: `path` and `size_bytes` of its directory, `seconds` it took, `notices`, the `merge`
    report where it is one; or `error`, one sentence, and nothing at `path`."""

    form: Form
    path: Path
    size_bytes: int = 0
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)
    merge: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Order:
    """What forms are made of: `result`, the run's adapter or model; `sources`; options of the merge."""

    result: Path
    sources: Sources
    merge_options: dict[str, Any]


def write_forms(forms: Sequence[Form], output: Path, order: Order) -> list[WrittenForm]:
    """Write each form to its directory in `output`, merged ones first, which others are made from; in order of `forms`.

    Nothing is raised but what ends a program: a form that cannot be written has an `error`.
    """
    written: dict[Form, WrittenForm] = {}
    for form in sorted(forms, key=lambda form: form.kind != "merged"):
        logger.info("Writing %s", form.name)
        written[form] = _write(form, output / form.folder, order)
        if written[form].error:
            logger.error("%s was not written: %s", form.name, written[form].error)
    return [written[form] for form in forms]


def _write(form: Form, path: Path, order: Order) -> WrittenForm:
    made = WrittenForm(form, path)
    started = time.perf_counter()
    try:
        _WRITERS[form.kind](made, order)
        made.size_bytes = directory_bytes(path)
    except (UserError, CheckFailed) as error:
        made.error = str(error)
    except OSError as error:
        made.error = file_problem(error)
    except Exception as error:  # a library's: the other forms must not be lost by it
        logger.debug("%s", form.name, exc_info=True)
        made.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    made.seconds = time.perf_counter() - started
    for notice in made.notices:
        logger.info("%s: %s", form.name, notice)
    return made


def _write_adapter(made: WrittenForm, order: Order) -> None:
    if not (order.result / "adapter_config.json").is_file():
        raise UserError(f"{order.result} is a whole model: there is no adapter to give away.")
    made.notices += write_adapter_form(order.result, made.path)


def _write_merged(made: WrittenForm, order: Order) -> None:
    made.merge = write_merged_form(order.result, made.path, made.form.variant, **order.merge_options)
    made.notices += write_ollama_file(made.path)
    if made.form.variant != "fp32":  # forms in fewer bits compute in 16
        order.sources.written[made.form.variant] = made.path


def _write_bnb(made: WrittenForm, order: Order) -> None:
    made.notices += write_bnb_form(order.sources.merged(), made.path, BNB_BITS[made.form.name])


def _write_gguf(made: WrittenForm, order: Order) -> None:
    sources = order.sources
    sources.tools.need(made.form.variant, quantized=False)  # before a merge is made for nothing
    made.notices += write_gguf_form(
        sources.merged(), made.path, made.form.variant, sources.name, sources.tools, sources.sixteen_bit_gguf
    )


_WRITERS: dict[Kind, Callable[[WrittenForm, Order], None]] = {
    "adapter": _write_adapter,
    "merged": _write_merged,
    "bnb": _write_bnb,
    "gguf": _write_gguf,
}
