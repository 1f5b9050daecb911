"""Is this directory what vLLM expects, and with which line is it served? Told without vLLM being installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.serving.adapter import check_adapter
from hf_recipes.export.serving.command import adapter_command, merged_command, served_name
from hf_recipes.export.serving.facts import Finding, vllm_facts, vllm_name, warning
from hf_recipes.export.serving.files import Served, read_served
from hf_recipes.export.serving.model import check_model
from hf_recipes.export.serving.stopping import check_sampling, check_stopping, stop_ids

Kind = Literal["merged", "adapter"]


@dataclass(frozen=True)
class ServingReport:
    """What was found in `directory`, and the line that serves it (None where it will not load)."""

    directory: Path
    kind: Kind
    findings: list[Finding]
    command: str | None

    @property
    def loads(self) -> bool:
        """Whether nothing was found that vLLM refuses."""
        return all(finding.level != "will not load" for finding in self.findings)

    def lines(self) -> list[str]:
        """For the terminal: what needs attention, or that nothing does, and the line to serve it with."""
        told = [finding.line() for finding in self.findings if finding.level != "ok"]
        fine = len(self.findings) - len(told)
        head = f"{self.directory} in {vllm_name()} (read {vllm_facts()['read_on']}, not run): {fine} checks passed"
        return [head, *(f"  {line}" for line in told), *([f"  {self.command}"] if self.command else [])]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "directory": str(self.directory),
            "kind": self.kind,
            "engine": vllm_facts()["engine"],
            "engine_version": vllm_facts()["version"],
            "loads": self.loads,
            "findings": [finding.to_dict() for finding in self.findings],
            "command": self.command,
        }

    def require(self) -> None:
        """Raise `CheckFailed` where it will not load; each reason is told."""
        refused = [finding.text for finding in self.findings if finding.level == "will not load"]
        if refused:
            raise CheckFailed(f"{self.directory} will not load in {vllm_name()}: {' '.join(refused)}")


def check_serving(directory: Path | str) -> list[Finding]:
    """The findings of `serving_report`, for whichever of the two a directory holds."""
    path = Path(directory)
    kind: Kind = "adapter" if (path / "adapter_config.json").is_file() else "merged"
    return serving_report(path, kind=kind).findings


def serving_report(
    directory: Path | str,
    *,
    kind: Kind = "merged",
    adapters: Sequence[Path | str] = (),
    base: Path | str | None = None,
) -> ServingReport:
    """Hold a directory against what vLLM's source says it accepts; reads headers and JSON files, nothing is loaded.

    Args:
        directory: of a merged model, or, with ``kind="adapter"``, of an adapter.
        kind: ``merged`` or ``adapter``.
        adapters: more adapters to serve beside this one, on the same base.
        base: directory or Hub name of the adapters' base in place of the one that the first names.

    Raises:
        UserError: a directory is not there or its JSON is damaged, or the adapters name different bases.
    """
    served = read_served(Path(directory))
    if kind == "merged":
        findings = [*check_model(served), *check_stopping(served)]
        return _report(served.directory, kind, findings, lambda: merged_command(served))
    all_adapters = [served, *(read_served(Path(path)) for path in adapters)]
    name = _base_name(all_adapters, base)
    base_files = read_served(Path(name)) if Path(name).is_dir() else None
    findings = _base_findings(name, base_files)
    for adapter in all_adapters:
        findings += [_of(adapter, finding, len(all_adapters)) for finding in _adapter_findings(adapter, base_files)]
    findings += _template_findings(all_adapters)
    by_name = _names(all_adapters)
    return _report(served.directory, kind, findings, lambda: adapter_command(name, base_files, by_name))


def _report(directory: Path, kind: Kind, findings: list[Finding], command: Any) -> ServingReport:
    report = ServingReport(directory, kind, findings, None)
    return ServingReport(directory, kind, findings, command()) if report.loads else report


def _base_name(adapters: Sequence[Served], base: Path | str | None) -> str:
    if base is not None:
        return str(base)
    names = {str(adapter.adapter_config.get("base_model_name_or_path") or "") for adapter in adapters}
    if len(names) > 1:
        raise UserError(
            f"The adapters name different bases ({', '.join(sorted(names))}): one server has one; give it with base=."
        )
    if names == {""}:
        raise UserError(f"'{adapters[0].directory}' names no base model (adapter_config.json): give it with base=.")
    return names.pop()


def _base_findings(name: str, base: Served | None) -> list[Finding]:
    if base is None:
        return [
            warning(
                "base", f"The base '{name}' is not here as a directory, so it was not checked: try it before you ship."
            )
        ]
    return [finding for finding in [*check_model(base), *check_sampling(base)] if finding.level != "ok"]


def _adapter_findings(adapter: Served, base: Served | None) -> list[Finding]:
    return [*check_adapter(adapter, base), *(_end_findings(adapter, base) if base is not None else [])]


def _end_findings(adapter: Served, base: Served) -> list[Finding]:
    """Tokenizer and end tokens are the base's for every adapter."""
    more = set(adapter.tokens) - set(base.tokens) if base.tokens else set()
    findings = []
    if more:
        findings.append(
            warning(
                "tokenizer",
                f"The adapter's tokenizer has {len(more)} tokens that the base's has not (e.g. {min(more)}): the line "
                "below gives it to the server, for all adapters.",
            )
        )
    missing = ", ".join(map(str, sorted(stop_ids(adapter) - stop_ids(base))))
    if missing:
        own = f"give --generation-config {adapter.directory}" if adapter.generation else "send it as stop_token_ids"
        findings.append(
            warning(
                "end of turn", f"The training ended answers with {missing}, at which the base does not stop: {own}."
            )
        )
    return findings


def _template_findings(adapters: Sequence[Served]) -> list[Finding]:
    if len({adapter.template for adapter in adapters}) > 1:
        return [
            warning(
                "chat template",
                "The adapters were trained with different chat templates, and a server has one: send chat_template "
                "with the requests, or serve them apart.",
            )
        ]
    return []


def _of(adapter: Served, finding: Finding, count: int) -> Finding:
    """With several adapters each finding says whose it is."""
    return finding if count == 1 else Finding(finding.level, finding.about, f"{adapter.directory}: {finding.text}")


def _names(adapters: Sequence[Served]) -> dict[str, Served]:
    """Distinct names; the second of a name is numbered."""
    named: dict[str, Served] = {}
    for adapter in adapters:
        name = plain = served_name(adapter.directory)
        number = 1
        while name in named:
            number += 1
            name = f"{plain}-{number}"
        named[name] = adapter
    return named
