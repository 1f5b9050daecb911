"""What follows once forms are written: a model card in each, lines to serve them by, and the upload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.forms.table import form_cells
from hf_recipes.export.serving.report import serving_report


def give_away(run_path: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Write cards; returns lines that say where each form is and how it is served.

    Args:
        rows: of export.json; those of base and tuned result, and failed ones, are passed over.
    """
    from hf_recipes.export.card.write import write_model_card

    cells = form_cells([row for row in rows if not row.get("error")])
    lines = []
    for row in _good(rows):
        directory = Path(row["path"])
        write_model_card(run_path, directory, merge=row.get("merge"), forms=cells)
        lines.append(f"{row['name']}: {directory}")
        lines += [f"  {line}" for line in _serving(row, directory)]
    return lines


def push_forms(run_path: Path, rows: Sequence[dict[str, Any]], name: str, *, private: bool) -> list[str]:
    """Upload the good forms; returns a line for each with its address.

    Args:
        rows: of export.json, as in `give_away`.
        name: a repository's name on the Hub; several forms go to ``NAME-FORM`` each.
        private: whether new repositories are.

    Raises:
        UserError, CheckFailed: the upload is refused or fails (see `export.push`); forms on disk stay.
    """
    from hf_recipes.export.push import push_directory
    from hf_recipes.export.push_files import base_named_in_run

    places = [Path(row["path"]) for row in _good(rows)]
    base = base_named_in_run(run_path / "adapter")  # forms may lie anywhere
    addresses = []
    for place, repository in zip(places, repositories(name, [place.name for place in places]), strict=True):
        addresses.append(f"Uploaded to {push_directory(place, repository, private=private, base=base)}")
    return addresses


def repositories(name: str, folders: Sequence[str]) -> list[str]:
    """The repositories that forms go to, by their directories' names: ``NAME``, or ``NAME-FORM`` of several."""
    return [name] if len(folders) == 1 else [f"{name}-{folder}" for folder in folders]


def _good(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row.get("path") and not row.get("error")]


def _serving(row: dict[str, Any], directory: Path) -> list[str]:
    if row["name"].startswith("gguf"):
        return [f"ollama create NAME -f {directory / 'Modelfile'}"]
    try:
        return serving_report(directory, kind="adapter" if row["name"] == "adapter" else "merged").lines()
    except (UserError, CheckFailed) as error:
        return [str(error)]
