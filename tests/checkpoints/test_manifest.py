from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.checkpoints.manifest import (
    DamagedManifest,
    Manifest,
    _checksum,
    read_manifest,
    read_verified,
    write_manifest,
)
from hf_recipes.checkpoints.verification.scan import FileScan, TensorFacts, list_files
from hf_recipes.core.files import sha256_of_file

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
facts = st.builds(
    TensorFacts,
    st.sampled_from(["F32", "BF16"]),
    st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    st.none() | st.floats(allow_nan=False),
)
scans = st.builds(
    FileScan, st.integers(0, 2**60), st.just("ab" * 32), st.none() | st.dictionaries(text, facts, max_size=3)
)
plain = st.recursive(st.none() | st.booleans() | st.integers() | text, lambda inner: st.lists(inner, max_size=3))
manifests = st.builds(
    Manifest,
    st.dictionaries(text, scans, max_size=4),
    st.none() | st.integers(0),
    st.integers(1, 4096),
    st.dictionaries(text, plain, max_size=3),
)


@given(manifests)
def test_a_manifest_survives_json(manifest):
    assert Manifest.from_dict(json.loads(json.dumps(manifest.to_dict(), allow_nan=False))) == manifest


def test_nan_survives_json_too():
    manifest = Manifest({"model.safetensors": FileScan(8, "00", {"w": TensorFacts("F32", (2,), float("nan"))})})
    tensors = Manifest.from_dict(json.loads(json.dumps(manifest.to_dict(), allow_nan=False))).files
    assert math.isnan(tensors["model.safetensors"].tensors["w"].abs_max)


@pytest.mark.parametrize(("key", "value"), [("step", "2"), ("world_size", "2"), ("world_size", True), ("step", 1.5)])
def test_a_count_that_is_no_number_is_damage_even_under_a_right_checksum(key, value):
    content = {name: each for name, each in Manifest({}).to_dict().items() if name != "checksum"} | {key: value}
    with pytest.raises(DamagedManifest, match="no number"):
        Manifest.from_dict({**content, "checksum": _checksum(content)})


@given(manifests, st.sampled_from(["schema", "step", "world_size", "files", "tensors", "extra", "checksum"]))
def test_a_manifest_that_lost_a_field_is_damaged(manifest, lost):
    value = manifest.to_dict()
    del value[lost]
    with pytest.raises(DamagedManifest):
        Manifest.from_dict(value)


def test_it_lists_every_file_with_size_hash_and_tensors(full_run):
    checkpoint = full_run / "checkpoint-2"
    manifest = read_manifest(checkpoint)
    assert sorted(manifest.files) == list_files(checkpoint)
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= set(
        manifest.files
    )
    for name, scan in manifest.files.items():
        assert scan.bytes == (checkpoint / name).stat().st_size
        assert scan.sha256 == sha256_of_file(checkpoint / name)
    up = manifest.files["model.safetensors"].tensors["model.layers.0.mlp.up_proj.weight"]
    assert (up.dtype, up.shape) == ("F32", (64, 32))
    assert up.abs_max > 0
    assert (manifest.step, manifest.world_size) == (2, 1)


def test_extra_is_kept_step_may_be_given_and_an_old_mark_does_not_outlive_a_new_manifest(full_run, tmp_path):
    checkpoint = full_run / "checkpoint-2"
    assert read_verified(checkpoint)["ok"]
    write_manifest(checkpoint, {"step": 7, "base_model": "tiny"})
    assert read_manifest(checkpoint).extra == {"base_model": "tiny"}
    assert read_manifest(checkpoint).step == 7
    assert read_verified(checkpoint) is None


def test_a_missing_manifest_is_none_and_a_damaged_one_says_so(full_run):
    checkpoint = full_run / "checkpoint-2"
    (checkpoint / "manifest.json").write_text('{"files": ')
    with pytest.raises(DamagedManifest, match="not JSON"):
        read_manifest(checkpoint)
    (checkpoint / "manifest.json").unlink()
    assert read_manifest(checkpoint) is None
