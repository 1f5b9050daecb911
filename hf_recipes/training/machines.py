"""The place of this machine among those of a job, as the command line or accelerate's config file says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.errors import UserError

DEFAULT_PORT = 29500  # accelerate's and torchrun's
_FLAGS = ("num_machines", "machine_rank", "main_process_ip", "main_process_port")


@dataclass(frozen=True)
class Machine:
    """One of `count` machines that train together.

    Attributes:
        count: machines of the job, each with as many ranks.
        rank: number of this one; the first keeps the records.
        main_ip, main_port: where the first one listens.
    """

    count: int = 1
    rank: int = 0
    main_ip: str | None = None
    main_port: int = DEFAULT_PORT

    def flags(self) -> list[str]:
        """For accelerate's launcher."""
        return [
            *("--num_machines", str(self.count), "--machine_rank", str(self.rank)),
            *("--main_process_ip", str(self.main_ip), "--main_process_port", str(self.main_port)),
        ]


ALONE = Machine()


def place_of(given: dict[str, Any], config_file: str | None) -> Machine:
    """This machine's place.

    Args:
        given: the flags ``num_machines``, ``machine_rank``, ``main_process_ip``, ``main_process_port`` as text; None
            where one was not given.
        config_file: accelerate's, whose values stand for flags that were not given.

    Raises:
        UserError: a value is none, or one is missing that several machines need.
    """
    content = read_config(config_file)
    values = {name: content.get(name) if given.get(name) is None else given[name] for name in _FLAGS}
    count = _number("num_machines", values, 1, least=1)
    if given.get("num_machines") is not None and int(content.get("num_machines") or count) != count:
        raise UserError(
            f"--num_machines: {count}, and '{config_file}' says num_machines: {content['num_machines']}: give the same."
        )
    if count == 1:
        _refuse_place(given)
        return ALONE
    rank = _number("machine_rank", values, None, least=0)
    if rank >= count:
        raise UserError(f"--machine_rank: {rank} is none of {count} machines: give 0 to {count - 1}, each on its own.")
    if not values["main_process_ip"]:
        raise UserError(
            f"{count} machines are to train together: give --main_process_ip, the name or address of the first."
        )
    return Machine(count, rank, str(values["main_process_ip"]), _number("main_process_port", values, DEFAULT_PORT, 1))


def read_config(config_file: str | None) -> dict[str, Any]:
    """What an accelerate config file says; empty where there is none.

    Raises:
        UserError: it is damaged.
    """
    if config_file is None or not Path(config_file).is_file():
        return {}
    try:
        content = yaml.safe_load(Path(config_file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--config_file: '{config_file}' is no YAML ({reason}): write it once more.") from error
    if not isinstance(content, dict):
        raise UserError(f"--config_file: '{config_file}' holds no keys: name a file of `accelerate config`.")
    return content


def _refuse_place(given: dict[str, Any]) -> None:
    """A rank or an address without a number of machines would start a run of its own on each of them."""
    for name in ("machine_rank", "main_process_ip", "main_process_port"):
        if given.get(name) is not None:
            raise UserError(f"--{name} is for several machines: give --num_machines too.")


def _number(name: str, values: dict[str, Any], default: int | None, least: int) -> int:
    value = values[name]
    if value is None and default is None:
        raise UserError(f"--{name}: several machines are to train together: give the number of this one, from 0.")
    if value is None:
        return int(default or 0)
    if not str(value).isdecimal() or not least <= int(value) <= 65535:
        raise UserError(f"--{name}: '{str(value)[:40]}' is no whole number from {least} to 65535.")
    return int(value)
