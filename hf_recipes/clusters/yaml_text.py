"""YAML for people to read; imported where it is written, since the parser costs a fifth of what `--help` may take."""

from __future__ import annotations

from typing import Any

import yaml


def yaml_text(value: Any) -> str:
    """Plain data in the order of its keys, texts of several lines as blocks, and nothing by reference."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)
