"""A torch profiler trace, read from the file that browsers show (Chrome's trace event format)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hf_recipes.core.files import read_json
from hf_recipes.profiling.intervals import Named

PREFIX = "hf_recipes::"  # of the ranges this package puts into the trace
_DATALOADER = "enumerate(DataLoader)"  # the range torch's own DataLoader puts there
_MESSAGES = ("gloo:", "nccl", "mpi:", "ucc:", "c10d::", "record_param_comms")
_DEVICE_TYPES = {0: "cpu", 1: "cuda"}  # c10::DeviceType
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "signed char": "int8",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
}


class Op(NamedTuple):
    """An operator as the host ran it. Times in µs; `dims`, `dtypes`, `values` one entry an argument."""

    start: float
    end: float
    name: str
    thread: int
    dims: list[Any]
    dtypes: list[str]
    values: list[str]


class Kernel(NamedTuple):
    """What ran on the device; `launched` is the host's time when it was asked for (None: unknown). Times in µs."""

    start: float
    end: float
    name: str
    launched: float | None


class Memory(NamedTuple):
    """`allocated` bytes held on `device` after an allocation or a release at `at` (µs)."""

    at: float
    device: str
    allocated: int


@dataclass
class Trace:
    """What is read from a trace, each list by ascending start. `messages` are exchanges between ranks, on whichever
    thread of the host waits for them."""

    ranges: list[Named] = field(default_factory=list)
    messages: list[Named] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)


def read_trace(path: Path) -> Trace:
    """Read a trace written by `torch.profiler.profile.export_chrome_trace`."""
    return parse_events(read_json(path)["traceEvents"])


def parse_events(events: Iterable[Mapping[str, Any]]) -> Trace:
    """Sort trace events into this package's ranges, operators, device kernels and memory readings; skip the others."""
    trace = Trace()
    launches: dict[int, float] = {}
    kernels: list[tuple[Named, int | None]] = []
    for event in events:
        category, arguments = event.get("cat"), event.get("args", {})
        if event["name"] == "[memory]":
            device = _DEVICE_TYPES.get(arguments["Device Type"], "other")
            trace.memory.append(Memory(event["ts"], device, arguments["Total Allocated"]))
        elif event.get("ph") != "X":
            continue
        elif category == "cpu_op":
            trace.ops.append(_op(event, arguments))
        elif category == "user_annotation":
            stretch = Named(event["ts"], event["ts"] + event["dur"], event["name"])
            if is_message(stretch.name):
                trace.messages.append(stretch)
            elif name := _range_name(stretch.name):
                trace.ranges.append(stretch._replace(name=name))
        elif category in ("cuda_runtime", "cuda_driver"):
            if "correlation" in arguments:
                launches[arguments["correlation"]] = event["ts"]
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            stretch = Named(event["ts"], event["ts"] + event["dur"], event["name"])
            kernels.append((stretch, arguments.get("correlation")))
    trace.kernels = [
        Kernel(*stretch, None if correlation is None else launches.get(correlation)) for stretch, correlation in kernels
    ]
    trace.messages += [Named(op.start, op.end, op.name) for op in trace.ops if is_message(op.name)]
    for stretches in (trace.ranges, trace.messages, trace.ops, trace.kernels, trace.memory):
        stretches.sort(key=lambda stretch: stretch[0])
    return trace


def is_message(name: str) -> bool:
    """Whether an operator, range or kernel exchanges something between ranks."""
    return name.startswith(_MESSAGES)


def _op(event: Mapping[str, Any], arguments: Mapping[str, Any]) -> Op:
    return Op(
        event["ts"],
        event["ts"] + event["dur"],
        event["name"],
        event["tid"],
        arguments.get("Input Dims", []),
        [_DTYPES.get(name, name) for name in arguments.get("Input type", [])],
        arguments.get("Concrete Inputs", []),
    )


def _range_name(name: str) -> str | None:
    if name.startswith(_DATALOADER):
        return "read"
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None
