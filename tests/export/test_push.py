"""Uploads against a real HTTP server that speaks the few routes of the Hub that a push needs."""

from __future__ import annotations

import base64
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from export_helpers import change_json
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import ones

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.forms.give import push_forms
from hf_recipes.export.push import push_directory

TOKEN = "hf_" + "tEsT" * 8


class Hub(BaseHTTPRequestHandler):
    """Creates, validates, takes LFS files and commits; remembers all of it in `server.state`."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        state = self.server.state
        state["paths"].append(self.path)
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if asked["organization"] == "somebody-else":
                return self.answer(403, {"error": "You don't have the rights"})
            if name in state["repositories"]:
                return self.answer(409, {"error": "You already created this model repo"})
            state["repositories"][name] = asked.get("visibility") == "private"
            return self.answer(200, {"url": f"{state['url']}/{name}"})
        if self.path == "/api/validate-yaml":
            if "license: nonsense" in json.loads(body)["content"]:
                return self.answer(400, {"errors": [{"message": '"license" must be one of [apache-2.0]'}]})
            return self.answer(200, {"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": [{**file, "shouldIgnore": False} for file in files]})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**o, "actions": {"upload": {"href": f"{state['url']}/upload/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects}, "application/vnd.git-lfs+json")
        assert "/commit/main" in self.path, self.path
        for line in body.decode().splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                state["files"][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                state["files"][entry["value"]["path"]] = state["uploads"][entry["value"]["oid"]]
        repository = self.path.split("/api/models/")[1].split("/commit/")[0]
        return self.answer(200, {"commitUrl": f"{state['url']}/{repository}/commit/{'a' * 40}", "commitOid": "a" * 40})

    def do_PUT(self):
        oid = self.path.rpartition("/")[2]
        self.server.state["uploads"][oid] = self.rfile.read(int(self.headers["Content-Length"]))
        return self.answer(200, {})

    def do_GET(self):
        name = self.path.removeprefix("/api/models/").split("?")[0]
        private = self.server.state["repositories"].get(name)
        if private is None:
            return self.answer(404, {"error": "Repository not found"})
        return self.answer(200, {"_id": "1", "id": name, "private": private, "sha": "a" * 40, "siblings": []})

    def answer(self, status, value, kind="application/json"):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    url = f"http://127.0.0.1:{server.server_port}"
    server.state = {"url": url, "repositories": {}, "files": {}, "uploads": {}, "paths": []}
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # as the environment variable, which is read on import
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server.state
    server.shutdown()
    server.server_close()


@pytest.fixture
def form(tmp_path):
    """An adapter's directory with everything that ever lay beside one."""
    directory = tmp_path / "adapter"
    directory.mkdir()
    save_file({"base_model.model.q_proj.lora_A.weight": ones(4, 8)}, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "r": 4}')
    (directory / "README.md").write_text("---\nlicense: mit\n---\n# Tuned\n")
    (directory / "tokenizer_config.json").write_text('{"name_or_path": "/home/alice/base", "eos_token": "<|im_end|>"}')
    (directory / "hf_recipes_merge.json").write_text('{"base": "/home/alice/base", "dtype": "bf16"}')
    for name in ("optimizer.pt", "rng_state_0.pth", "training_args.bin", "run.json", "events.rank1.jsonl"):
        (directory / name).write_text("{}")
    for name in ("trainer_state.json", "manifest.json", ".writer.lock"):
        (directory / name).write_text("{}")
    (directory / "checkpoint-5").mkdir()
    (directory / "checkpoint-5" / "model.safetensors").write_bytes(b"x")
    return directory


def test_a_form_is_uploaded_in_one_commit_without_what_belongs_to_the_run(hub, form, caplog):
    with caplog.at_level("INFO", "hf_recipes"):
        url = push_directory(form, "me/tuned", private=True)
    assert url == f"{hub['url']}/me/tuned/commit/{'a' * 40}"
    assert hub["repositories"] == {"me/tuned": True}
    assert sorted(hub["files"]) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "hf_recipes_merge.json",
        "tokenizer_config.json",
    ]
    assert hub["files"]["adapter_model.safetensors"] == (form / "adapter_model.safetensors").read_bytes()
    assert b"alice" not in b"".join(hub["files"].values())
    assert json.loads(hub["files"]["tokenizer_config.json"]) == {"eos_token": "<|im_end|>"}
    assert json.loads(hub["files"]["hf_recipes_merge.json"]) == {"base": "base", "dtype": "bf16"}
    assert "9 files" in caplog.text and "tokenizer_config.json: name_or_path" in caplog.text
    assert "alice" in (form / "tokenizer_config.json").read_text()  # only the copy is changed
    push_directory(form, "me/tuned", private=True)
    with caplog.at_level("INFO", "hf_recipes"):
        push_directory(form, "me/open", private=False)
    assert hub["repositories"]["me/open"] is False


def test_an_existing_public_repository_is_not_taken_for_a_private_one(hub, form):
    hub["repositories"]["me/tuned"] = False
    with pytest.raises(UserError, match="is there and public"):
        push_directory(form, "me/tuned", private=True)
    assert not hub["files"]


@pytest.mark.parametrize("name", ["tuned", "me/", "/tuned", "me/a/b", "me/a b", "me/-a", "me/a..b", "me/a--b", "me/" + "a" * 97, "me/x.git", "https://hf.co/me/x"])  # fmt: skip  # noqa: E501
def test_names_that_are_none_are_refused_before_anything_is_sent(hub, form, name):
    with pytest.raises(UserError, match="is no name on the Hub"):
        push_directory(form, name, private=True)
    assert not hub["paths"]


def test_a_local_base_needs_its_name_on_the_hub(hub, form):
    change_json(form / "adapter_config.json", base_model_name_or_path="/home/alice/base")
    with pytest.raises(UserError, match="a directory of this machine"):
        push_directory(form, "me/tuned", private=True)
    assert not hub["paths"]
    push_directory(form, "me/tuned", private=True, base="org/base")
    assert json.loads(hub["files"]["adapter_config.json"]) == {"base_model_name_or_path": "org/base", "r": 4}
    (form.parent / "run.json").write_text('{"recipe": {"model_name_or_path": "org/named"}}')
    push_directory(form, "me/tuned", private=True)
    assert json.loads(hub["files"]["adapter_config.json"])["base_model_name_or_path"] == "org/named"


def test_forms_anywhere_take_the_base_s_name_from_their_run(hub, form, tmp_path):
    change_json(form / "adapter_config.json", base_model_name_or_path="/home/alice/base")
    run = tmp_path / "elsewhere" / "run"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"recipe": {"model_name_or_path": "org/named"}}')
    rows = [{"name": "base"}, {"name": "adapter", "path": str(form)}, {"name": "x", "path": "gone", "error": "no"}]
    lines = push_forms(run, rows, "me/tuned", private=True)
    assert [line.split("/commit")[0] for line in lines] == [f"Uploaded to {hub['url']}/me/tuned"]
    assert json.loads(hub["files"]["adapter_config.json"])["base_model_name_or_path"] == "org/named"


def test_tokens_never_go(hub, form):
    (form / "README.md").write_text(f"# Tuned\nlogin({TOKEN!r})\n")
    with pytest.raises(UserError, match=r"README\.md holds what looks like an access token"):
        push_directory(form, "me/tuned", private=True)
    assert not hub["paths"]


def test_a_damaged_or_half_written_or_empty_form_is_refused(hub, form, tmp_path):
    with pytest.raises(CheckFailed, match="does not verify, and nothing was uploaded: q_proj holds NaN"):
        push_directory(form, "me/tuned", private=True, check=lambda path: ["q_proj holds NaN"])
    (form / ".model.safetensors.123.tmp").write_bytes(b"x")
    with pytest.raises(UserError, match="still being written"):
        push_directory(form, "me/tuned", private=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no weights"):
        push_directory(tmp_path / "empty", "me/tuned", private=True)
    with pytest.raises(UserError, match="is not a directory"):
        push_directory(tmp_path / "nowhere", "me/tuned", private=True)
    assert not hub["paths"]


def test_without_a_token_there_is_one_sentence(hub, form, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with pytest.raises(UserError, match="no Hub token here"):
        push_directory(form, "me/tuned", private=True)
    assert not hub["paths"]


def test_what_the_hub_answers_is_one_sentence(hub, form, monkeypatch):
    with pytest.raises(UserError, match=r"may not write to 'somebody-else' \(403\)"):
        push_directory(form, "somebody-else/tuned", private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "nOpE" * 8)
    with pytest.raises(UserError, match=r"does not accept the token \(401\)"):
        push_directory(form, "me/tuned", private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (form / "README.md").write_text("---\nlicense: nonsense\n---\n# Tuned\n")
    with pytest.raises(UserError, match=r'Invalid metadata in README\.md\. - "license" must be one of'):
        push_directory(form, "me/tuned", private=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    with pytest.raises(UserError, match="cannot be reached"):
        push_directory(form, "me/tuned", private=True)
    assert not hub["files"]
