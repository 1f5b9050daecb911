"""A finished run in the forms people use, each loaded back and measured: the export room, with evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe, read_json
from hf_recipes.core.free_space import check_free_space, directory_bytes
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory, find_run
from hf_recipes.core.versions import stack_versions
from hf_recipes.export.forms.closeness import is_too_far
from hf_recipes.export.forms.llama_cpp import find_llama_cpp
from hf_recipes.export.forms.merged_form import write_merged_form
from hf_recipes.export.forms.names import Form
from hf_recipes.export.forms.sources import Sources, temporary_place
from hf_recipes.export.forms.space import count_parameters, needed_bytes
from hf_recipes.export.forms.write import Order, WrittenForm, write_forms
from hf_recipes.export.staging import check_output

SCHEMA = 1
EXPORT_JSON = "export.json"
EXPORTS = "exports"


@dataclass(frozen=True)
class ExportOptions:
    """How forms are made and measured.

    `base`, `allow_other_base`, `proof` and `base_values` are those of `merge_adapter`; `llama_cpp` is a directory with
    llama.cpp's tools; `samples` replaces the recipe's; without `measure` forms are only loaded back and compared.
    """

    overwrite: bool = False
    base: str | None = None
    allow_other_base: bool = False
    proof: str = "tensors"
    base_values: str = "original"
    llama_cpp: str | None = None
    samples: int | None = None
    measure: bool = True


def export_run(
    run: RunDirectory | str | Path | None,
    forms: Sequence[Form],
    output: Path | str | None = None,
    options: ExportOptions | None = None,
) -> dict[str, Any]:
    """Write a run's result in `forms`, load each back in a process of its own, and write ``export.json`` into the run.

    Args:
        run: A run directory; None for the current directory or the newest run.
        forms: From `export.forms.names.parse_forms`.
        output: Where forms get their directories; by default ``RUN/exports``.
        options: See `ExportOptions`.

    Returns:
        The content of export.json: ``rows``, one a form and before them base and adapter (see `forms.table`); a row
        with an ``error`` was not written or did not pass. Rows of earlier exports whose directories are there stay.

    Raises:
        UserError: no such run, no result in it or a record that names no base, an output that exists, held-out rows
            that are gone, or a disk too full: nothing is written then.
    """
    options = options or ExportOptions()
    directory = run if isinstance(run, RunDirectory) else find_run(run)
    facts = directory.read(directory.run_json)
    _check_record(facts, directory, options)
    place = Path(output) if output else directory.path / EXPORTS
    tools = find_llama_cpp(options.llama_cpp)
    for form in forms:
        check_output(place / form.folder, options.overwrite, directory.result)
    model = None if _is_copy_alone(directory, forms, options) else _model_place(directory, facts, options)
    _check_space(directory, forms, place, model)
    dtype = _sixteen_bits(model) if model else "bf16"
    merge_options = {"base": options.base, "allow_other_base": options.allow_other_base, "proof": options.proof}
    if options.base_values != "original":
        merge_options["base_values"] = options.base_values
    with temporary_place(place) as temporary:

        def merge(to: Path) -> None:
            logger.info("Merging, as what other forms are made from")
            write_merged_form(directory.result, to, dtype, **merge_options)

        sources = Sources(temporary, merge, tools, directory.path.resolve().name, dtype)
        written = write_forms(forms, place, Order(directory.result, sources, merge_options))
        document = _write(directory, [_row(form) for form in written], options)  # kept, whatever measuring meets
        for rows in _Measuring(directory, facts, sources, options).rows(written):
            document = _write(directory, rows, options)
    return document


def _check_record(facts: dict[str, Any], directory: RunDirectory, options: ExportOptions) -> None:
    """What measuring will read, before hours of writing."""
    base = facts.get("base_model") if isinstance(facts, dict) else None
    if not isinstance(base, dict) or not isinstance(base.get("name_or_path"), str):
        raise UserError(f"{directory.run_json} names no base_model.name_or_path: restore it, or train again.")
    suite = _suite(facts, options)
    if options.measure and suite:
        from hf_recipes.evaluation.suite import EvaluationSuite

        EvaluationSuite.from_dict(suite)


def _suite(facts: dict[str, Any], options: ExportOptions) -> dict[str, Any] | None:
    """The recipe's ``evaluation:``, if there is one, with the samples asked for."""
    recipe = facts.get("recipe")
    suite = recipe.get("evaluation") if isinstance(recipe, dict) else None
    if not isinstance(suite, dict):
        return None
    return {**suite, "samples": options.samples} if options.samples else suite


def _is_copy_alone(directory: RunDirectory, forms: Sequence[Form], options: ExportOptions) -> bool:
    """Whether nothing but an adapter's files is wanted, for which the base need not be there."""
    is_adapter = directory.result == directory.adapter
    return is_adapter and options.base is None and all(form.kind == "adapter" for form in forms)


def _model_place(directory: RunDirectory, facts: dict[str, Any], options: ExportOptions) -> Path:
    """The weights and the config that forms are made from: the result, or the base that its adapter is for."""
    result = directory.result
    if result != directory.adapter:
        return result
    from hf_recipes.export.bases.find import find_base

    found = find_base(read_json(result / "adapter_config.json"), options.base, facts.get("base_model") or {})
    return found if found.is_dir() else found.parent


def _sixteen_bits(model: Path) -> str:
    """fp16 for a model in fp16, which bf16 would round; else bf16."""
    file = model / "config.json"
    config = read_json(file) if file.is_file() else {}
    return "fp16" if (config.get("dtype") or config.get("torch_dtype")) == "float16" else "bf16"


def _check_space(directory: RunDirectory, forms: Sequence[Form], place: Path, model: Path | None) -> None:
    own = directory_bytes(directory.result)
    _check_room(place, own if model is None else needed_bytes(forms, count_parameters(model), own))


@dataclass(frozen=True)
class _Measuring:
    directory: RunDirectory
    facts: dict[str, Any]
    sources: Sources
    options: ExportOptions

    def rows(self, written: Sequence[WrittenForm]) -> Iterator[list[dict[str, Any]]]:
        """All rows anew after each that was measured: forms in their order, before them base and tuned result. The
        merged model comes first of all: its logits are what others are compared with."""
        rows = [_row(form) for form in written]
        if all(form.error for form in written):  # nothing to hold against base and tuned result
            return
        reference = self._reference(written)
        baselines: list[dict[str, Any]] = []
        if self.options.measure:
            for name, size, order in self._baselines(written):
                near = None if name == "base" else reference
                baselines.append({"name": name, "size_bytes": size, **self._measured(name, order, near)})
                yield [*baselines, *rows]
        for row, form in zip(rows, written, strict=True):
            if form.error:
                continue
            row |= self._measured(form.form.name, self._order(form), reference)
            if row.get("error") is None and (far := is_too_far(form.form, row.get("closeness"))):
                row["error"] = far
            yield [*baselines, *rows]

    def _reference(self, written: Sequence[WrittenForm]) -> Path | None:
        """A file with the merged model's logits; None where nothing was made from a merged model."""
        done = [w for w in written if not w.error and w.form.kind != "adapter"]
        if not done:
            return None
        merged = next((w.path for w in done if w.form.kind == "merged"), None) or self.sources.merged()
        file = self.sources.place / "reference.npz"
        order = {"kind": "model", "path": str(merged), "tokenizer": str(self.directory.result), "measure": False}
        result = self._measured("the merged model", order, file)
        if error := result.get("error"):
            logger.warning("Nothing is compared with the merged model: %s.", error)
            return None
        return file

    def _baselines(self, written: Sequence[WrittenForm]) -> list[tuple[str, int | None, dict[str, Any]]]:
        """Name, size in bytes and order of the base, and of the tuned result unless the adapter is one of the forms."""
        base = self.facts["base_model"]
        place = Path(base["name_or_path"])
        size = directory_bytes(place) if place.is_dir() else place.stat().st_size if place.is_file() else None
        order = {"kind": "base", "path": base["name_or_path"], "revision": base.get("revision")}
        baselines: list[tuple[str, int | None, dict[str, Any]]] = [("base", size, order)]
        if not any(form.form.kind == "adapter" and not form.error for form in written):
            result = self.directory.result
            order = (
                self._adapter(result) if result == self.directory.adapter else {"kind": "model", "path": str(result)}
            )
            baselines.append((f"tuned ({result.name})", directory_bytes(result), order))
        return baselines

    def _order(self, written: WrittenForm) -> dict[str, Any]:
        if written.form.kind == "adapter":
            return self._adapter(written.path)
        if written.form.kind == "gguf":
            return {"kind": "gguf", "path": str(next(written.path.glob("*.gguf")))}
        return {"kind": "model", "path": str(written.path)}

    def _adapter(self, path: Path) -> dict[str, Any]:
        base = self.facts["base_model"]
        name = self.options.base or base["name_or_path"]
        return {"kind": "adapter", "path": str(path), "base": name, "base_revision": base.get("revision")}

    def _measured(self, name: str, order: dict[str, Any], reference: Path | None) -> dict[str, Any]:
        suite = _suite(self.facts, self.options)
        logger.info("Loading back %s", name)
        full = {"tokenizer": str(self.directory.result), "measure": self.options.measure, "suite": suite}
        return _in_own_process({**full, **order, "reference": str(reference) if reference else None})


def _in_own_process(order: dict[str, Any]) -> dict[str, Any]:
    """`measure_form` in a new process; what goes wrong there is an ``error``."""
    command = [sys.executable, "-m", "hf_recipes.training.measure_form"]
    done = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, errors="replace", check=False, env=os.environ
    )
    if done.returncode == 0 and done.stdout.strip():
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    said = done.stderr.strip().splitlines()
    return {"error": f"it cannot be loaded back ({said[-1].strip()[:300] if said else f'code {done.returncode}'})"}


def _row(written: WrittenForm) -> dict[str, Any]:
    path, size = (None, None) if written.error else (str(written.path), written.size_bytes)
    return {
        "name": written.form.name,
        "path": path,
        "size_bytes": size,
        "write_seconds": written.seconds,
        "notices": written.notices,
        "merge": written.merge,
        "error": written.error,
    }


def _write(directory: RunDirectory, rows: list[dict[str, Any]], options: ExportOptions) -> dict[str, Any]:
    file = directory.path / EXPORT_JSON
    names = {row["name"] for row in rows}
    earlier: list[dict[str, Any]] = []
    if file.is_file():
        try:
            earlier = list(read_json(file)["rows"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s could not be read and is written anew.", file)
    kept = [row for row in earlier if row["name"] not in names and row.get("path") and Path(row["path"]).is_dir()]
    settings = {"samples": options.samples, "measured": options.measure, "cores": usable_cores()}
    document = {"schema": SCHEMA, "rows": [*rows, *kept], "settings": settings, "versions": stack_versions()}
    directory.write(file, json_safe(document))
    return {**document, "rows": rows}


def _check_room(place: Path, needed_bytes: int) -> None:
    cure = "make room, ask for fewer, or name an output on another disk"
    check_free_space(place, needed_bytes, "The forms need about", cure)
