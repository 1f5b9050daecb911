"""A GGUF file with its Ollama Modelfile, through llama.cpp's own tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hf_recipes.core.errors import CheckFailed
from hf_recipes.export.companions import copy_files
from hf_recipes.export.forms.companion_files import COMPANIONS
from hf_recipes.export.forms.gguf_file import GgufFacts, read_gguf_facts
from hf_recipes.export.forms.llama_cpp import LlamaCpp
from hf_recipes.export.forms.merged_form import generation_config
from hf_recipes.export.forms.modelfile import write_modelfile
from hf_recipes.export.forms.names import CONVERTED
from hf_recipes.export.staging import staged


def write_gguf_form(
    merged: Path, output: Path, gguf_type: str, name: str, tools: LlamaCpp, sixteen_bit: Callable[[], Path]
) -> list[str]:
    """Write ``NAME-TYPE.gguf``, ``Modelfile`` and the tokenizer's files into `output`; returns notices worth telling.

    Args:
        merged: directory in safetensors.
        gguf_type: one of `forms.names.GGUF_BITS`.
        name: the model's, for the file and in it.
        sixteen_bit: gives the GGUF file in 16 bits that other types are quantised from.

    Raises:
        UserError: a tool is missing.
        CheckFailed: a tool failed, or what it wrote is not a GGUF file.
    """
    tools.need(gguf_type, quantized=gguf_type not in CONVERTED)
    with staged(output) as staging:
        file = staging / f"{name}-{gguf_type}.gguf"
        if gguf_type in CONVERTED:
            tools.convert(merged, file, gguf_type, name)
        else:
            tools.quantize(sixteen_bit(), file, gguf_type)
        facts = _facts(file)
        copy_files(merged, staging, COMPANIONS)
        notices = _write_modelfile(staging, file, facts)
    return [_types_notice(gguf_type, facts), *notices]


def _facts(file: Path) -> GgufFacts:
    try:
        return read_gguf_facts(file)
    except (ValueError, IndexError, KeyError) as error:
        raise CheckFailed(f"what llama.cpp wrote cannot be read ({error})") from error


def _write_modelfile(staging: Path, file: Path, facts: GgufFacts) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(staging, trust_remote_code=False)
    return write_modelfile(
        staging,
        f"./{file.name}",
        tokenizer,
        adds_bos=facts.adds_bos,
        generation=generation_config(staging),
        context=facts.context,
    )


def _types_notice(gguf_type: str, facts: GgufFacts) -> str:
    """K types work on rows of 256 values: where a row is no multiple, llama.cpp takes another type, which is told."""
    notice = facts.describe_types()
    wanted = gguf_type.upper().removesuffix("_S").removesuffix("_M").removesuffix("_L")
    others = sum(count for name, count in facts.types.items() if name != wanted)
    if gguf_type not in CONVERTED and 2 * others > sum(facts.types.values()):
        notice += f"; few are {wanted}, whose blocks of 256 values do not divide this model's rows"
    return notice
