"""Tokens and keys stay where they are: found by their form, refused in recipes, and in no file that a run leaves."""

from __future__ import annotations

import json
import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.cli.main import main
from hf_recipes.core.errors import UserError
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.core.secrets import (
    HIDDEN,
    holds_likely_secret,
    holds_secret,
    names_secret,
    secret_places,
    without_likely_secrets,
    without_secrets,
)
from hf_recipes.models.precision import Hardware, choose_precision
from hf_recipes.recipe.resolve import Recipe, load_recipe
from hf_recipes.training.output import record_run, write_status

# Made up, in the forms of real ones; joined here so that no scanner takes this file for a leak.
HF = "hf_" + "CanaryHuggingFaceTokenAbcdefghijkl"
TOKENS = {
    "Hugging Face": HF,
    "OpenAI": "sk-" + "proj-CanaryOpenAI0123456789abcdefABCDEF",
    "Anthropic": "sk-" + "ant-api03-CanaryAnthropic0123456789ABC",
    "GitHub": "ghp_" + "CanaryGitHub0123456789abcdefghijklmnop",
    "AWS": "AKIA" + "CANARYCANARY0123",
    "Google": "AIza" + "CanaryGoogle0123456789abcdefghijklm",
    "W&B": "wandb_v1_" + "CanaryWandb0123456789abcdef",
    "JWT": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl",
    "address": "https://canary:" + "swordfish@example.com/rows.jsonl",
    "private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
}
PLAIN = [
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "runs/hf_finetuned_model_2024",
    "sk-learn-datasets-of-all-kinds-and-more",
    "https://huggingface.co/datasets/x@main",
    "s3://bucket/key:value",
    "git@github.com:owner/name",
    "curl -H 'Authorization: Bearer $HF_TOKEN' https://$USER:$PASSWORD@example.com/",
    "task-" + "a" * 60,
    "<|im_end|>",
    "q_proj|k_proj",
]


@pytest.mark.parametrize("kind", TOKENS)
def test_tokens_are_known_by_their_form(kind):
    token = TOKENS[kind]
    for text in (token, f"curl -H 'X: {token}'", f"({token})", f"a\n{token}\nb"):
        assert holds_secret(text)
    shown = json.dumps(without_secrets({"a": [{"b": f"x {token} y"}], "c": (token,)}))
    assert HIDDEN in shown and token not in shown and "anary:swordfish" not in shown


@pytest.mark.parametrize("text", PLAIN)
def test_names_paths_and_references_are_none(text):
    assert not holds_secret(text)
    assert list(secret_places({"a": text})) == []


@pytest.mark.trials
@given(st.text(string.ascii_lowercase + string.digits + "/-_. ", max_size=80))
def test_lower_case_names_are_none(text):
    """What a model or directory is usually called; `hf_`, `gh?_`, `wandb_v1_` and JWTs need their own beginning."""
    if not any(start in text for start in ("hf_", "gh", "glpat", "xox", "wandb_v1")):
        assert not holds_secret(text)


@pytest.mark.parametrize("kind", TOKENS)
def test_what_others_will_read_hides_shorter_ones_too(kind):
    token = TOKENS[kind]
    for text in (token, token[: 7 * len(token) // 8] if kind not in ("address", "private key", "Google") else token):
        assert "anary" not in without_likely_secrets(f"x {text} y")
        assert holds_likely_secret(text) or kind == "address"


@pytest.mark.parametrize(
    "text",
    [text for text in PLAIN if "://" not in text and not text.startswith("sk-")] + ["hf_tokenizer", "hf_recipes.sft"],
)
def test_and_no_names(text):
    assert without_likely_secrets(text) == text


@pytest.mark.parametrize(
    "key", ["hub_token", "token", "api_key", "apikey", "wandb_api_key", "AWS_SECRET", "db.password", "webhook_url"]
)
def test_keys_that_name_a_secret(key):
    assert names_secret(key)
    assert without_secrets({key: "opaque", "n": {key: "opaque"}}) == {key: HIDDEN, "n": {key: HIDDEN}}


@pytest.mark.parametrize("key", ["eos_token", "pad_token", "ms_per_token", "num_virtual_tokens", "tokens", "secretary"])
def test_keys_that_name_none(key):
    assert without_secrets({key: "x"}) == {key: "x"}


def test_numbers_and_switches_under_such_a_key_stay():
    assert without_secrets({"api_key": None, "token": 3, "password": False}) == {
        "api_key": None,
        "token": 3,
        "password": False,
    }


EVIL = "<img src=x onerror=alert(1)>"  # as a file's name, too
RECIPE = {"model_name_or_path": "m", "datasets": [{"path": "rows.jsonl"}]}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"datasets": [{"path": "json", "data_files": [TOKENS["address"]]}]}, "datasets.0.data_files.0"),
        ({"on_finish": f"curl -H 'Authorization: Bearer {HF}' https://example.com"}, "on_finish"),
        ({"preemption_command": f"curl -u {TOKENS['AWS']}"}, "preemption_command"),
        ({"run_name": HF}, "run_name"),
    ],
)
def test_a_secret_in_a_recipe_is_refused_and_not_repeated(changes, place, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({**RECIPE, **changes}))
    with pytest.raises(UserError, match=f"'{place}' holds what looks like an access token") as error:
        load_recipe(str(tmp_path / "mine.yaml"))
    assert "anary" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("arguments", [["--hub_token", HF], [f"--hub_token={HF}"], ["--run_name", HF]])
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(arguments, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(json.dumps(RECIPE))
    for verb in ("sft", "classify", "overfit", "profile"):
        assert main([verb, "--config", str(tmp_path / "mine.yaml"), *arguments]) == 2
    told = capsys.readouterr()
    assert "anary" not in told.out + told.err and "HF_TOKEN" in told.err


def test_an_opaque_hub_token_has_no_place_in_a_recipe(tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({**RECIPE, "hub_token": "unformed"}))
    with pytest.raises(UserError, match=r"'hub_token' is not used here.*HF_TOKEN") as error:
        load_recipe(str(tmp_path / "mine.yaml"))
    assert "unformed" not in str(error.value)


def test_how_a_run_crashed_is_told_without_secrets(tmp_path):
    write_status(tmp_path, 1, f"crashed with HTTPError: {TOKENS['address']} and {HF}", {})
    text = (tmp_path / "status.json").read_text()
    assert "example.com" in text and "anary" not in text


def test_what_was_set_from_python_is_not_recorded(tmp_path):
    """Past the check of recipes; a pipeline of somebody's own may build them."""
    values = {"model_name_or_path": "m", "seed": 1, "hub_token": "unformed", "datasets": [{"path": TOKENS["address"]}]}
    record_run(
        RunDirectory(tmp_path),
        Recipe("mine", values, frozenset(values)),
        base_model={},
        hardware=Hardware("cpu", True),
        precision=choose_precision("lora", Hardware("cpu", True)),
        world_size=1,
    )
    recorded = json.loads((tmp_path / "run.json").read_text())["recipe"]
    assert (recorded["seed"], recorded["hub_token"]) == (1, HIDDEN)
    assert recorded["datasets"] == [{"path": f"https://{HIDDEN}@example.com/rows.jsonl"}]


def all_text(*places) -> bytes:
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    return b"\n".join(file.read_bytes() for file in files)


@pytest.fixture
def secret_environment(monkeypatch):
    """Every variable that a user of this stack keeps a secret in."""
    found = {
        "HF_TOKEN": HF,
        "HUGGING_FACE_HUB_TOKEN": "hf_" + "CanaryOldVariableAbcdefghijklmnopq",
        "WANDB_API_KEY": "canarywandbkey0123456789abcdef0123456789",
        "AWS_ACCESS_KEY_ID": TOKENS["AWS"],
        "AWS_SECRET_ACCESS_KEY": "CanaryAwsSecret/0123456789+abcdefghijklmn",
        "COMET_API_KEY": "CanaryCometKey0123456789",
        "MLFLOW_TRACKING_PASSWORD": "CanaryMlflowPassword",
        "OPENAI_API_KEY": TOKENS["OpenAI"],
        "HTTPS_PROXY": "http://proxyuser:CanaryProxyPassword@proxy.example:3128",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def leaked(secrets, text: bytes) -> list[str]:
    parts = [*secrets.values(), "CanaryProxyPassword"]
    return [part for part in parts if part.encode() in text]


def test_doctor_tells_that_a_token_is_there_and_not_which(secret_environment, capsys):
    main(["doctor", "--quick", "--json"])
    told = capsys.readouterr()
    assert json.loads(told.out)
    assert not leaked(secret_environment, (told.out + told.err).encode())


def test_job_files_hold_no_variable_of_this_shell(secret_environment, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"instruction": "q", "output": "a"}) + "\n")
    (tmp_path / "mine.yaml").write_text(json.dumps(RECIPE))
    for kind in ("slurm", "k8s", "skypilot", "ray"):
        command = ["launch", "--config", "mine.yaml", "--on", kind, "--write", f"jobs/{kind}", "--gpus", "1"]
        flags = {
            "k8s": ["--image", "me/trainer:1", "--pvc", "runs"],
            "skypilot": ["--bucket", "s3://runs", "--gpu", "h100"],
            "ray": ["--output_dir", "/shared/runs/mine"],
        }
        if main([*command, *flags.get(kind, [])]) != 0:
            pytest.fail(capsys.readouterr().err)
    told = capsys.readouterr()
    assert not leaked(secret_environment, all_text(tmp_path / "jobs") + (told.out + told.err).encode())


@pytest.mark.trials
def test_a_whole_run_leaks_nothing(secret_environment, tiny_model_dir, tmp_path, monkeypatch, capfd):
    from hf_recipes.training.run import train

    monkeypatch.chdir(tmp_path)
    rows = [
        {"messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": f"a {n}"}]}
        for n in range(24)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "model_name_or_path": str(tiny_model_dir),
        "overfit_check": "off",
        "datasets": [{"path": "rows.jsonl"}],
        "evaluation": {"domain": "rows.jsonl", "max_new_tokens": 4, "samples": 2},
        "max_steps": 2,
        "save_steps": 1,
        "per_device_train_batch_size": 2,
        "disable_tqdm": True,
        "output_dir": "run",
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe))
    train(load_recipe("mine.yaml"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for command in (
        ["evaluate", "run", "--rating-sheet", "sheet.html"],
        ["report", "run"],
        ["verify", "run/adapter"],
        ["merge", "run", "--to", "bf16"],
        ["export", "run", "--forms", "adapter", "--no-measure"],
        ["doctor", "run", "--json"],
    ):
        code = main(command)
        assert code in (0, 1), (command, capfd.readouterr())
    told = capfd.readouterr()
    names = {file.name for file in (tmp_path / "run").rglob("*")}
    assert {"run.json", "events.jsonl", "report.html", "evaluation.json", "README.md"} <= names
    found = leaked(secret_environment, all_text(tmp_path / "run") + (told.out + told.err).encode())
    assert found == []
    assert os.environ["HF_TOKEN"] == HF


@pytest.mark.trials
def test_a_sweep_and_a_plan_leak_nothing_and_show_hostile_names_as_text(
    secret_environment, tiny_model_dir, tmp_path, monkeypatch, capfd
):
    """Trials in processes of their own, whose logs are kept; a recipe whose name is a tag."""
    monkeypatch.chdir(tmp_path)
    recipe = f"{EVIL}.yaml"
    (tmp_path / recipe).write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets: [{{path: rows.jsonl}}]\nmax_steps: 2\nsave_steps: 1000\n"
        f"per_device_train_batch_size: 2\noverfit_check: 'off'\nrun_name: '{EVIL}'\n"
    )
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "q {n}", "completion": "a {n}"}}\n' for n in range(24)))
    assert main(["sweep", "--config", recipe, "--lr", "1e-4,1e-3"]) == 0, capfd.readouterr().err
    plan = ["plan", "--config", recipe, "--gpu", "a100-80gb", "--html", "plan.html", "--png", "plan.png"]
    assert main([*plan, "--write", "planned"]) == 0, capfd.readouterr().err
    told = capfd.readouterr()
    assert leaked(secret_environment, all_text(tmp_path) + (told.out + told.err).encode()) == []
    pages = [tmp_path / "plan.html", *tmp_path.rglob("sweep.html"), *tmp_path.rglob("report.html")]
    assert len(pages) == 4
    for page in pages:
        shows_the_name = page.name != "plan.html"
        assert EVIL not in page.read_text() and ("&lt;img" in page.read_text()) == shows_the_name, page
