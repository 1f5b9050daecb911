from __future__ import annotations

import json
import shutil

import pytest
import torch
from checkpoint_helpers import tiny_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hf_recipes import UserError
from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.verification.scan import list_files, scan_directory
from hf_recipes.checkpoints.verification.verify import verify_checkpoint

MODEL = "model.safetensors"
ADAPTER = "adapter_model.safetensors"


def rewrite(file, change):
    """Change the tensors of a safetensors file through `change(tensors)`; its form stays sound."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def found(report, *words):
    """The problems that name all of `words`."""
    return [problem for problem in report.problems if all(word in str(problem) for word in words)]


def drop_manifest(checkpoint):
    (checkpoint / "manifest.json").unlink()
    (checkpoint / "verified.json").unlink()


@pytest.mark.parametrize("level", ["structure", "content", "reload"])
def test_a_sound_checkpoint_is_good_at_every_level(full_run, lora_run, level):
    for checkpoint in (full_run / "checkpoint-2", lora_run / "checkpoint-2"):
        report = verify_checkpoint(checkpoint, level)
        assert report.ok, report.problems
        assert report.proven
        # The adapter's base was never saved.
        assert [note for note in report.notes if "it names no base, so it was not loaded" not in note] == []


def test_without_a_manifest_it_says_what_it_cannot_see(full_run):
    checkpoint = full_run / "checkpoint-2"
    drop_manifest(checkpoint)
    report = verify_checkpoint(checkpoint)
    assert report.ok
    assert not report.proven
    assert any("one changed bit" in note for note in report.notes)


@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.parametrize("name", [MODEL, "optimizer.pt", "rng_state.pth", "trainer_state.json", "config.json"])
def test_c1_a_truncated_file_is_found_by_its_structure_alone(full_run, name, with_manifest):
    checkpoint = full_run / "checkpoint-2"
    if not with_manifest:
        drop_manifest(checkpoint)
    content = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(content[: len(content) // 2])
    assert found(verify_checkpoint(checkpoint, "structure"), name)


def test_c1_a_missing_file_is_found(full_run):
    checkpoint = full_run / "checkpoint-2"
    (checkpoint / "scheduler.pt").unlink()
    assert found(verify_checkpoint(checkpoint, "structure"), "scheduler.pt", "missing")


def test_c3_one_flipped_bit_in_the_weights_is_found_by_the_manifest_only(full_run):
    checkpoint = full_run / "checkpoint-2"
    content = bytearray((checkpoint / MODEL).read_bytes())
    content[-1] ^= 0b0000_0001  # lowest exponent bit of a float32: finite still
    (checkpoint / MODEL).write_bytes(content)
    assert verify_checkpoint(checkpoint, "structure").ok
    assert found(verify_checkpoint(checkpoint, "content"), MODEL, "SHA-256")
    drop_manifest(checkpoint)
    assert verify_checkpoint(checkpoint, "content").ok


def test_c3_a_flipped_bit_in_the_optimizer_is_found_even_without_a_manifest(full_run):
    checkpoint = full_run / "checkpoint-2"
    drop_manifest(checkpoint)
    content = bytearray((checkpoint / "optimizer.pt").read_bytes())
    content[len(content) // 2] ^= 1  # torch's zip archive carries checksums
    (checkpoint / "optimizer.pt").write_bytes(content)
    assert found(verify_checkpoint(checkpoint), "optimizer.pt", "checksum")


def test_c3_a_newly_all_zero_tensor_is_found_and_named(full_run):
    checkpoint = full_run / "checkpoint-2"
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(checkpoint / MODEL, lambda tensors: tensors[name].zero_())
    assert found(verify_checkpoint(checkpoint), name, "all zero")
    drop_manifest(checkpoint)
    report = verify_checkpoint(checkpoint)
    assert report.ok
    assert any(name in note for note in report.notes)


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (float("-inf"), "Inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_c3_one_value_that_is_not_finite_is_found_and_named(full_run, value, word, dtype):
    checkpoint = full_run / "checkpoint-2"
    drop_manifest(checkpoint)
    name = "model.layers.1.mlp.down_proj.weight"

    def spoil(tensors):
        plain = tensors[name].clone()
        plain[3, 5] = value
        tensors[name] = plain.to(dtype)

    rewrite(checkpoint / MODEL, spoil)
    assert found(verify_checkpoint(checkpoint), name, word)
    assert verify_checkpoint(checkpoint, "structure").ok


def test_t8_tensors_without_values_are_found_by_structure(lora_run):
    checkpoint = lora_run / "checkpoint-2"
    drop_manifest(checkpoint)

    def empty(tensors):
        for name in tensors:
            tensors[name] = torch.empty(0)

    rewrite(checkpoint / ADAPTER, empty)
    report = verify_checkpoint(checkpoint, "structure")
    assert len(found(report, "has shape [0]")) == 8  # q and v, A and B, of two layers


def test_t8_an_adapter_of_forty_bytes_is_found(lora_run):
    checkpoint = lora_run / "checkpoint-2"
    drop_manifest(checkpoint)
    save_file({}, checkpoint / ADAPTER, metadata={"format": "pt"})
    assert (checkpoint / ADAPTER).stat().st_size == 40
    assert found(verify_checkpoint(checkpoint, "structure"), ADAPTER, "holds no tensors")


def test_m12_half_a_pair_is_found_and_named(lora_run):
    checkpoint = lora_run / "checkpoint-2"
    drop_manifest(checkpoint)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    rewrite(checkpoint / ADAPTER, lambda tensors: tensors.pop(name))
    assert found(verify_checkpoint(checkpoint, "structure"), "q_proj.lora_A", "without its lora_B")


def test_a_zero_lora_a_is_a_problem_and_zero_lora_b_everywhere_a_note(lora_run):
    checkpoint = lora_run / "checkpoint-2"
    drop_manifest(checkpoint)
    rewrite(checkpoint / ADAPTER, lambda tensors: [t.zero_() for name, t in tensors.items() if ".lora_B." in name])
    report = verify_checkpoint(checkpoint)
    assert report.ok
    assert any("learned nothing" in note for note in report.notes)
    rewrite(checkpoint / ADAPTER, lambda tensors: [t.zero_() for name, t in tensors.items() if ".lora_A." in name])
    assert len(found(verify_checkpoint(checkpoint), "lora_A", "all zero")) == 4


def test_an_adapter_without_its_configuration_or_with_foreign_targets_is_found(lora_run):
    checkpoint = lora_run / "checkpoint-2"
    drop_manifest(checkpoint)
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["c_attn"]}))
    assert found(verify_checkpoint(checkpoint, "structure"), "adapter_config.json", "c_attn")
    (checkpoint / "adapter_config.json").unlink()
    assert found(verify_checkpoint(checkpoint, "structure"), "adapter_config.json", "missing")


def test_a_dora_adapter_needs_its_magnitudes(lora_run):
    checkpoint = lora_run / "checkpoint-2"
    drop_manifest(checkpoint)
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    assert len(found(verify_checkpoint(checkpoint, "structure"), "lora_magnitude_vector")) == 4


def test_an_adapter_is_checked_against_its_base(lora_run, tmp_path):
    checkpoint = lora_run / "checkpoint-2"
    tiny_llama().save_pretrained(tmp_path / "same")
    assert verify_checkpoint(checkpoint, "structure", base=tmp_path / "same").ok
    tiny_llama(hidden_size=64).save_pretrained(tmp_path / "wider")
    assert len(found(verify_checkpoint(checkpoint, "structure", base=tmp_path / "wider"), "matrix")) == 4
    save_file({"h.0.weight": torch.ones(2, 2)}, tmp_path / "same" / MODEL)
    assert found(verify_checkpoint(checkpoint, "structure", base=tmp_path / "same"), "another base")


@pytest.fixture
def sharded(tmp_path):
    """A model in several shards, without a manifest."""
    tiny_llama().save_pretrained(tmp_path / "sharded", max_shard_size="30KB")
    return tmp_path / "sharded"


def test_shards_and_index_that_agree_are_good(sharded):
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert verify_checkpoint(sharded).ok


def test_a_missing_shard_a_surplus_shard_and_a_missing_index_are_found(sharded):
    first, second, *_ = sorted(sharded.glob("*.safetensors"))
    shutil.copy(second, sharded / "model-00009-of-00009.safetensors")
    first.unlink()
    report = verify_checkpoint(sharded, "structure")
    assert found(report, first.name, "missing")
    assert found(report, "model-00009-of-00009", "does not name")
    (sharded / "model.safetensors.index.json").unlink()
    assert found(verify_checkpoint(sharded, "structure"), "index.json", "is missing")


def test_tensors_in_the_index_but_not_in_the_file_and_the_other_way_round(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[0]
    gone = sorted(load_file(shard))[0]

    def rename(tensors):
        tensors["stranger"] = tensors.pop(gone)

    rewrite(shard, rename)
    report = verify_checkpoint(sharded, "structure")
    assert found(report, shard.name, gone, "missing")
    assert found(report, shard.name, "stranger")


def test_two_models_in_one_directory_are_found(sharded, tiny_model_dir):
    shutil.copy(tiny_model_dir / MODEL, sharded / MODEL)
    assert found(verify_checkpoint(sharded, "structure"), MODEL, "two models")


def test_tensors_that_nobody_wrote_are_found_and_other_additions_noted(full_run):
    checkpoint = full_run / "checkpoint-2"
    (checkpoint / "README.md").write_text("mine")
    report = verify_checkpoint(checkpoint)
    assert report.ok
    assert any("README.md" in note for note in report.notes)
    save_file({"x": torch.ones(1)}, checkpoint / "extra.safetensors")
    assert found(verify_checkpoint(checkpoint), "extra.safetensors", "not in the manifest")


def test_what_is_no_checkpoint_is_wrong_use(tmp_path, full_run):
    with pytest.raises(UserError, match="does not exist"):
        verify_checkpoint(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is empty"):
        verify_checkpoint(tmp_path / "empty")
    (tmp_path / "empty" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="no checkpoint"):
        verify_checkpoint(tmp_path / "empty")
    with pytest.raises(UserError, match="is no directory"):
        verify_checkpoint(full_run / "checkpoint-2" / MODEL)
    with pytest.raises(UserError, match="did you mean 'content'"):
        verify_checkpoint(full_run / "checkpoint-2", "contents")


@pytest.fixture(scope="module")
def manifested(written_lora, tmp_path_factory):
    """One checkpoint with a manifest, put back by each trial below."""
    return shutil.copytree(written_lora / "checkpoint-2", tmp_path_factory.mktemp("trials") / "checkpoint-2")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_truncation_or_changed_byte_of_any_file_is_found(manifested, data):
    names = [name for name in list_files(manifested) if name != "README.md"]  # a card may be edited
    file = manifested / data.draw(st.sampled_from(names))
    before = file.read_bytes()
    place = data.draw(st.integers(0, len(before) - 1))
    change = data.draw(st.integers(0, 255))  # 0: cut the file there
    after = before[:place] + (bytes([before[place] ^ change]) + before[place + 1 :] if change else b"")
    try:
        file.write_bytes(after)
        assert found(verify_checkpoint(manifested), file.name)
    finally:
        file.write_bytes(before)
    assert verify_checkpoint(manifested).ok


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_of_the_manifest_is_found_or_changes_nothing(manifested, data):
    file = manifested / "manifest.json"
    before = file.read_bytes()
    place = data.draw(st.integers(0, len(before) - 1))
    after = bytearray(before)
    after[place] ^= data.draw(st.integers(1, 255))
    try:
        file.write_bytes(after)
        assert found(verify_checkpoint(manifested), "manifest.json") or same_json(before, after)
    finally:
        file.write_bytes(before)


def same_json(before, after):
    """White space changed into other white space."""
    return json.loads(before) == json.loads(after)


def test_memory_is_bounded_by_the_buffers_not_by_the_tensor(tmp_path):
    import tracemalloc

    save_file({"w": torch.ones(32 << 20, dtype=torch.bfloat16)}, tmp_path / MODEL)  # 64 MiB in one tensor
    write_manifest(tmp_path)
    tracemalloc.start()
    try:
        assert verify_checkpoint(tmp_path, "content").ok
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_several_files_at_once_give_the_same_in_the_same_order_within_two_buffers_each(tmp_path):
    import tracemalloc

    for number in range(6):
        values = torch.full((8 << 20,), 1.0 + number, dtype=torch.bfloat16)  # 16 MiB a file
        save_file({f"w{number}": values}, tmp_path / f"part-{number}.safetensors")
    one = scan_directory(tmp_path, values=True, hashes=True, threads=1)
    tracemalloc.start()
    try:
        three = scan_directory(tmp_path, values=True, hashes=True, threads=3)
        assert tracemalloc.get_traced_memory()[1] < 3 * 2 * (2 << 20) + (2 << 20)
    finally:
        tracemalloc.stop()
    assert list(one) == list(three) == sorted(one)
    assert one == three
    assert three["part-5.safetensors"].tensors["w5"].abs_max == 6.0
