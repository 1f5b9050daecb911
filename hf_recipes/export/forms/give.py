"""What follows once forms are written: a model card in each, lines to serve them by, and the upload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.forms.table import form_cells
from hf_recipes.export.serving.report import serving_report


def give_away(run_path: Path, rows: Sequence[dict[str, Any]], *, push: str | None, private: bool) -> list[str]:
    """Write cards and upload what was asked for; returns lines that say where each form is and how it is served.

    Args:
        rows: of export.json; those of base and tuned result, and failed ones, are passed over.
        push: a repository's name on the Hub; several forms go to ``NAME-FORM`` each. None uploads nothing.
        private: whether new repositories are.

    Raises:
        UserError, CheckFailed: the upload is refused or fails (see `export.push`); forms on disk stay.
    """
    from hf_recipes.export.card.write import write_model_card

    cells = form_cells([row for row in rows if not row.get("error")])
    good = [row for row in rows if row.get("path") and not row.get("error")]
    lines = []
    for row in good:
        directory = Path(row["path"])
        write_model_card(run_path, directory, merge=row.get("merge"), forms=cells)
        lines.append(f"{row['name']}: {directory}")
        lines += [f"  {line}" for line in _serving(row, directory)]
    if push:
        lines += _push(good, push, private)
    return lines


def _serving(row: dict[str, Any], directory: Path) -> list[str]:
    if row["name"].startswith("gguf"):
        return [f"ollama create NAME -f {directory / 'Modelfile'}"]
    try:
        return serving_report(directory, kind="adapter" if row["name"] == "adapter" else "merged").lines()
    except (UserError, CheckFailed) as error:
        return [str(error)]


def _push(rows: Sequence[dict[str, Any]], name: str, private: bool) -> list[str]:
    from hf_recipes.export.push import push_directory

    repositories = [name] if len(rows) == 1 else [f"{name}-{Path(row['path']).name}" for row in rows]
    addresses = (
        push_directory(Path(row["path"]), repository, private=private)
        for row, repository in zip(rows, repositories, strict=True)
    )
    return [f"Uploaded to {address}" for address in addresses]
