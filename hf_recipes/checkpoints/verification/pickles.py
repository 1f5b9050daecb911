"""What a pickle would import, read from its opcodes without running one, and whether checkpoints hold such things.

Unpickling calls whatever the file names, so a name is all it takes; the allowlist has whole names and never a module.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator
from typing import IO, Any

COMPUTED = "a name put together at load time"
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of torch before 1.6
_TORCH_LEGACY_PICKLES = 5  # magic number, protocol, system, object, storage keys; bytes of the storages follow
_MARK = object()

_ALLOWED = re.compile(
    "|".join(
        [
            # Plain data, which cannot run anything whatever its arguments are.
            r"(builtins|__builtin__)\.(set|frozenset|list|dict|tuple|int|float|complex|bool|str|bytes|bytearray|slice"
            r"|range|object)",
            r"collections\.(OrderedDict|Counter|deque|defaultdict)",
            r"_codecs\.encode|copyreg\._reconstructor|copy_reg\._reconstructor",
            r"datetime\.(datetime|date|time|timedelta)|pathlib\.(Pure)?(Posix|Windows)?Path",
            r"pathlib\._local\.(Pure)?(Posix|Windows)?Path",
            # numpy: arrays, scalars, the state of its generator.
            r"numpy(\._?core)?\.(_?multiarray|numeric)\.(_reconstruct|scalar|_frombuffer)",
            r"numpy\.(ndarray|dtype|bool_?|u?int(8|16|32|64)|float(16|32|64)|random\._pickle\.__\w+_ctor)",
            r"numpy\.dtypes\.\w+DType",
            # torch: tensors and what they are made of; the list of its own weights_only loader, and dtypes to come.
            r"torch\.(cuda\.|sparse\.|cuda\.sparse\.)?[A-Z]\w*(Storage|Tensor)|torch\.(Size|Tensor|device|Generator)",
            r"torch\.(bool|bits\d\w*|b?float\d\w*|complex\d+|q?u?int\d\w*|per_(channel|tensor)_\w+)",
            r"torch\.storage\.(Typed|Untyped)Storage|torch\.nn\.parameter\.(Buffer|Parameter)",
            r"torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.serialization\._get_layout",
            # Distributed checkpoints and sharded tensors.
            r"torch\.distributed\.checkpoint\.metadata\.(_MEM_FORMAT_ENCODING|[A-Z][A-Za-z]*)",
            r"torch\.distributed\.checkpoint\.(filesystem|_hf_utils)\._\w*Info|torch\.distributed\.checkpoint\.planner"
            r"\.[A-Z][A-Za-z]*",
            r"torch\.distributed\.(_tensor|tensor)\.(api\.|_api\.)?DTensor",
            r"torch\.distributed\.(_tensor|tensor)\.(_dtensor_spec|placement_types)\.[A-Z][A-Za-z]*",
            r"torch\.distributed\.device_mesh\.DeviceMesh|torch\.distributed\._shard\.\w+(\.\w+)*\.[A-Z][A-Za-z]*",
            # Optimizers in 8 bits, DeepSpeed's states.
            r"bitsandbytes\.functional\.QuantState|torchao\.(dtypes|optim|quantization)(\.\w+)+\.[A-Z][A-Za-z0-9]*",
            r"deepspeed\.runtime\.fp16\.loss_scaler\.[A-Z][A-Za-z]*|deepspeed\.runtime\.zero\.config\.[A-Z][A-Za-z]*",
            r"deepspeed\.utils\.tensor_fragment\.fragment_address",
            # training_args.bin: the classes of configurations and their enums.
            r"transformers\.(training_args|training_args_seq2seq|trainer_utils|trainer_pt_utils)\.[A-Z][A-Za-z0-9]*",
            r"transformers\.debug_utils\.DebugOption|transformers\.(integrations\.)?deepspeed\.Hf\w*Config",
            r"transformers\.generation\.configuration_utils\.[A-Z][A-Za-z]*",
            r"trl(\.\w+)+_(config|args)\.[A-Z][A-Za-z0-9]*",
            r"(alignment|axolotl|llamafactory|llmtuner)(\.\w+)+\.[A-Z][A-Za-z0-9]*(Arguments|Config)",
            r"accelerate\.state\.[A-Z][A-Za-z]*|accelerate\.utils\.dataclasses\.[A-Z][A-Za-z0-9]*",
            r"accelerate\.parallelism_config\.ParallelismConfig",
            r"hf_recipes(\.\w+)+\.[A-Z][A-Za-z0-9]*(Arguments|Config|Settings)",
        ]
    )
)


def foreign_names(names: set[str]) -> tuple[str, ...]:
    """Those of `names` that no checkpoint of the Trainer, torch or DeepSpeed holds, sorted."""
    return tuple(sorted(name for name in names if not _ALLOWED.fullmatch(name)))


def names_in(stream: IO[bytes]) -> set[str]:
    """What the pickle (or the row of pickles that torch wrote before 1.6) at the head of `stream` would import.

    Raises:
        ValueError: the stream does not begin with a whole pickle.
    """
    names: set[str] = set()
    first = _read_pickle(stream, names)
    if first == _TORCH_MAGIC:
        for _ in range(_TORCH_LEGACY_PICKLES - 1):
            _read_pickle(stream, names)
    return names


def _read_pickle(stream: IO[bytes], names: set[str]) -> Any:
    """Follow one pickle on a stack where all but text and small numbers is None; add to `names` what it would import.
    Returns what it would give where that is known."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in _opcodes(stream):
        if opcode.name in ("GLOBAL", "INST"):
            names.add(str(argument).replace(" ", ".", 1))
        elif opcode.name == "STACK_GLOBAL":
            names.add(_joined(stack))
        elif opcode.name.startswith("EXT"):  # a number that stands for a class, in a table of the process
            names.add(f"extension {argument}")
        if opcode.name == "STOP":
            return stack[-1] if stack else None
        _follow(opcode, argument, stack, memo)
    raise ValueError("the pickle does not end")


def _opcodes(stream: IO[bytes]) -> Iterator[tuple[Any, Any, Any]]:
    try:
        yield from pickletools.genops(stream)
    except ValueError:
        raise
    except Exception as error:  # cut inside an argument: struct.error, IndexError, UnicodeDecodeError …
        raise ValueError(f"the pickle cannot be read ({type(error).__name__})") from None


def _joined(stack: list[Any]) -> str:
    if len(stack) > 1 and isinstance(stack[-1], str) and isinstance(stack[-2], str):
        return f"{stack[-2]}.{stack[-1]}"
    return COMPUTED


def _follow(opcode: Any, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    name = opcode.name
    if name in ("PUT", "BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1] if stack else None
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1] if stack else None
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo.get(argument))
    elif name == "DUP":
        stack.append(stack[-1] if stack else None)
    else:
        _pop(opcode, stack)
        for pushed in opcode.stack_after:
            is_value = isinstance(argument, (str, int)) and name not in ("GLOBAL", "INST", "PERSID")
            stack.append(_MARK if pushed is pickletools.markobject else argument if is_value else None)


def _pop(opcode: Any, stack: list[Any]) -> None:
    takes = opcode.stack_before
    if pickletools.markobject in takes or (opcode.name == "POP" and stack and stack[-1] is _MARK):
        while stack and stack.pop() is not _MARK:
            pass
        # What lies below the mark, such as the list that APPENDS fills, goes and comes back.
        takes = takes[: takes.index(pickletools.markobject)] if pickletools.markobject in takes else []
    del stack[max(0, len(stack) - len(takes)) :]
