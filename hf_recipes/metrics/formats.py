"""Formats of answers as metrics; see `evaluation.judges.formats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.evaluation.judges.formats import format_check
from hf_recipes.metrics.base import TextMetric, shares


class _Format(TextMetric):
    """``NAME_strict``, ``NAME_lenient`` and ``NAME_extra_prose``, shares from 0 to 1."""

    def __init__(self, name: str, spec: Mapping[str, Any], **settings: Any) -> None:
        self._format, self._check = name, format_check(spec)
        super().__init__(**settings)

    def _compute(self, predictions: Sequence[str]) -> dict[str, float]:
        verdicts = [self._check(prediction) for prediction in predictions]
        return shares(
            {
                f"{self._format}_{part}": [getattr(verdict, part) for verdict in verdicts]
                for part in ("strict", "lenient", "extra_prose")
            }
        )


class JsonFormat(_Format):
    """Whether answers are a JSON object or array: ``json_strict``, ``json_lenient``, ``json_extra_prose``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("json", {"json": True}, **settings)


class SchemaFormat(_Format):
    """Whether answers fit a JSON Schema: ``schema_strict``, ``schema_lenient``, ``schema_extra_prose``.

    Args:
        schema: a path, or the schema itself.
    """

    def __init__(self, schema: str | Path | dict[str, Any], **settings: Any) -> None:
        super().__init__("schema", {"schema": schema}, **settings)


class RegexFormat(_Format):
    """Whether answers match a pattern, from first to last character: ``regex_strict``, ``regex_lenient``, …"""

    def __init__(self, regex: str, **settings: Any) -> None:
        super().__init__("regex", {"regex": regex}, **settings)


class XmlFormat(_Format):
    """Whether answers are well-formed XML (of this root tag): ``xml_strict``, ``xml_lenient``, ``xml_extra_prose``."""

    def __init__(self, root: str | None = None, **settings: Any) -> None:
        super().__init__("xml", {"xml": root if root is not None else True}, **settings)


class CodeFormat(_Format):
    """Whether answers parse as code: ``code_strict``, ``code_lenient``, ``code_extra_prose``."""

    def __init__(self, language: str = "python", **settings: Any) -> None:
        super().__init__("code", {"code": language}, **settings)
