from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest
from export_helpers import change_json, save_adapter, save_base

from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.find import find_adapter, find_base
from hf_recipes.export.bases.hub import split_name
from hf_recipes.export.bases.identity import check_identity
from hf_recipes.export.bases.read import read_base

OLD, NEW = "a" * 40, "b" * 40
NAME = "some/model"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty Hub cache, offline as all tests are."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_in_cache(cache: Path, directory: Path, commit: str, *, name=NAME, ref=None, without=()) -> Path:
    """Lay `directory` out as the Hub's client does: blobs by hash, a snapshot of links to them, a ref."""
    place = cache / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    for folder in (place / "blobs", place / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    for file in directory.iterdir():
        if file.name in without:
            continue
        blob = place / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    if ref:
        (place / "refs" / ref).write_text(commit)
    return snapshot


def sharded(directory: Path) -> Path:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(save_base(directory / "whole")).save_pretrained(
        directory / "sharded", max_shard_size="60KB"
    )
    return directory / "sharded"


class Hub(BaseHTTPRequestHandler):
    """The few answers of the Hub that a download needs, for one repository at one commit."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []
    card: ClassVar[dict[str, str]] = {}

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = unquote(urlsplit(self.path).path)
        sizes = {name: len(data) for name, data in self.files.items()}
        if path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/main"):
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            self.send(json.dumps({"id": NAME, "sha": NEW, "siblings": siblings, "cardData": self.card}).encode())
        elif path == f"/api/models/{NAME}/tree/{NEW}":
            tree = [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes.items()]
            self.send(json.dumps(tree).encode())
        elif match := re.fullmatch(rf"/{NAME}/resolve/{NEW}/(.+)", path):
            self.asked.extend([match[1]] if body else [])
            self.send(self.files[match[1]], body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound" if NAME in path else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send(self, data, body=True):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", NEW)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(cache, monkeypatch):
    """A Hub on this machine, and the client pointed at it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    point_client_at(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(Hub, "files", {})
    monkeypatch.setattr(Hub, "asked", [])
    monkeypatch.setattr(Hub, "card", {})
    yield Hub
    server.shutdown()
    server.server_close()


def point_client_at(monkeypatch, address):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


def files_of(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_names_and_revisions_are_told_from_paths():
    assert split_name("gpt2") == ("gpt2", None)
    assert split_name("org/name@v1.0") == ("org/name", "v1.0")
    assert split_name("org/name@refs/pr/3") == ("org/name", "refs/pr/3")
    for path in ("./name", "/abs/name", "~/name", "../a", "a/b/c", "a\\b"):
        assert split_name(path) is None


def test_a_base_in_the_cache_is_found_by_name_revision_and_link(cache, tmp_path):
    base = save_base(tmp_path / "base")
    new = put_in_cache(cache, base, NEW, ref="main")
    old = put_in_cache(cache, base, OLD)
    assert find_base({"base_model_name_or_path": NAME}, None, {}) == new
    assert find_base({"base_model_name_or_path": NAME}, f"{NAME}@{OLD}", {}) == old
    assert find_base({"base_model_name_or_path": NAME, "revision": OLD}, None, {}) == old
    assert set(read_base(new).tensors) == set(read_base(base).tensors)


def test_m13_the_revision_that_was_trained_on_is_taken_from_the_run(cache, tmp_path):
    base = save_base(tmp_path / "base")
    put_in_cache(cache, base, NEW, ref="main")
    old = put_in_cache(cache, base, OLD)
    recorded = {"name_or_path": NAME, "revision": OLD}
    found = find_base({"base_model_name_or_path": NAME}, None, recorded)
    assert found == old and check_identity(found, recorded, allow_other=False) == "same"
    meant = find_base({"base_model_name_or_path": NAME}, f"{NAME}@main", recorded)
    with pytest.raises(UserError, match=rf"revision {NEW}; recorded: {OLD}"):
        check_identity(meant, recorded, allow_other=False)


@pytest.mark.parametrize("missing", ["shard", "config.json"])
def test_u3_offline_an_unfinished_snapshot_is_not_a_base(cache, tmp_path, missing):
    base = sharded(tmp_path)
    shards = sorted(file.name for file in base.glob("*.safetensors"))
    assert len(shards) > 1
    put_in_cache(cache, base, NEW, ref="main", without=[shards[1] if missing == "shard" else missing])
    with pytest.raises(
        UserError, match=rf"base model '{NAME}' is neither .* nor whole .* off by HF_HUB_OFFLINE"
    ) as error:
        find_base({"base_model_name_or_path": NAME}, None, {})
    assert "\n" not in str(error.value)


def test_a_base_is_fetched_without_pickles_code_or_other_copies(hub, cache, tmp_path, caplog):
    base = sharded(tmp_path)
    hub.files = {
        **files_of(base),
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "pytorch_model.bin": b"pickle",
        "pytorch_model.bin.index.json": b"{}",
        "consolidated.safetensors": b"a second copy",
        "onnx/model.onnx": b"onnx",
        "modeling_own.py": b"raise SystemExit",
        "original/params.json": b"{}",
        "README.md": b"# Card",
    }
    with caplog.at_level("INFO", logger="hf_recipes"):
        found = find_base({"base_model_name_or_path": NAME}, None, {})
    assert found == cache / "models--some--model" / "snapshots" / NEW
    assert set(hub.asked) == {*files_of(base), "tokenizer.json", "chat_template.jinja"}
    assert len(hub.asked) == len(set(hub.asked)), "nothing is fetched twice"
    weights = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    assert f"Fetching the base model '{NAME}' from the Hub:" in caplog.text and f"{weights / 1e9:.2f} GB" in caplog.text
    hub.asked.clear()
    assert find_base({"base_model_name_or_path": NAME}, f"{NAME}@main", {}) == found and not hub.asked
    assert set(read_base(found).tensors) == set(read_base(base).tensors)


def test_m6_a_quantised_base_is_refused_before_its_weights_are_fetched(hub, tmp_path):
    base = save_base(tmp_path / "base")
    change_json(base / "config.json", quantization_config={"quant_method": "awq"})
    hub.files = files_of(base)
    hub.card = {"base_model": "some/original"}
    with pytest.raises(UserError, match=r"AWQ-quantised.*16-bit model it was made from \('some/original', it seems\)"):
        find_base({"base_model_name_or_path": NAME}, None, {})
    assert "config.json" in hub.asked and "model.safetensors" not in hub.asked


def test_an_adapter_is_fetched_by_name(hub, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", save_base(tmp_path / "base"), target_modules=["q_proj"])
    hub.files = {**files_of(adapter), "optimizer.pt": b"pickle", "copy.safetensors": b"another"}
    found = find_adapter(f"{NAME}@main")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(hub.asked)
    assert not {"optimizer.pt", "copy.safetensors", "README.md"} & set(hub.asked)
    assert (found / "adapter_model.safetensors").read_bytes() == (adapter / "adapter_model.safetensors").read_bytes()
    assert find_adapter(adapter) == adapter


def test_an_adapter_of_pickled_weights_is_refused(hub):
    hub.files = {"adapter_config.json": b"{}", "adapter_model.bin": b"pickle"}
    with pytest.raises(UserError, match=f"adapter '{NAME}' holds only pickled weights"):
        find_adapter(NAME)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ("some/other", "neither a directory here nor a model on the Hub"),
        (f"{NAME}@v9", f"'{NAME}@v9' has no such revision"),
    ],
)
def test_u3_what_the_hub_does_not_have_is_one_sentence(hub, asked, match):
    with pytest.raises(UserError, match=match) as error:
        find_base({}, asked, {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("answers", [False, True])
def test_u3_without_a_network_it_takes_one_sentence_and_seconds(cache, monkeypatch, answers):
    """A port that refuses, and one that takes the call and never answers."""
    monkeypatch.setattr("hf_recipes.export.bases.hub._SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        point_client_at(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1] if answers else 9}")
        started = time.monotonic()
        with pytest.raises(UserError, match=rf"'{NAME}' is not whole .* the Hub did not give it \(\w+\)") as error:
            find_base({"base_model_name_or_path": NAME}, None, {})
    assert time.monotonic() - started < 5 and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "a/b/c", "nowhere.gguf"])
def test_what_is_written_as_a_path_is_not_asked_of_the_hub(hub, name):
    with pytest.raises(UserError, match=f"'{name}' is not a directory here"):
        find_base({}, name, {})
