"""A run directory of a stranger, given to the verbs that take one: its record asks for code, its files are links."""

from __future__ import annotations

import json

import pytest
from parsed_page import Page
from sampled import sampled

from hf_recipes.cli.main import main
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, write_text
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.export.companions import copy_files
from hf_recipes.export.push_files import files_to_push
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.report.page import write_report
from hf_recipes.training.evaluate import evaluate_run
from hf_recipes.training.own_code import check_code, code_file, remember_code

# Verbs that take a run directory, and the flags without which they do not begin.
VERBS = {
    "report": [],
    "verify": [],
    "doctor": [],
    "evaluate": [],
    "merge": ["--to", "bf16"],
    "export": ["--forms", "adapter,merged-bf16"],
}
MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\" onmouseover='x"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\r\x9b31m\u202e"


@pytest.fixture
def stranger(tmp_path, evil, canary):
    """A run whose record asks for everything that could run something."""
    place = tmp_path / "stranger"
    place.mkdir()
    (place / "score.py").write_text(evil)
    (place / "rows.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}) + "\n"
    )
    touch = f"touch {canary}"
    recipe = {
        "model_name_or_path": str(place),
        "trust_remote_code": True,
        "on_finish": touch,
        "preemption_command": touch,
        "datasets": [{"path": str(place / "rows.jsonl")}],
        "evaluation": {"domain": str(place / "rows.jsonl"), "function": f"{place / 'score.py'}:score"},
    }
    record = {"schema": 1, "name": "stranger", "recipe": recipe, "base_model": {"name_or_path": str(place)}}
    (place / "run.json").write_text(json.dumps(record))
    (place / "status.json").write_text(json.dumps({"code": 0, "sentence": "finished", "last_step": 1}))
    return RunDirectory(place)


def test_a_function_that_a_run_names_is_not_run_unasked(stranger, canary):
    with pytest.raises(UserError, match=r"score\.py, which no recipe trained on this machine named.*--allow-code"):
        evaluate_run(stranger)
    assert not canary.exists()


def test_the_verb_says_so_too(stranger, canary, capsys):
    assert main(["evaluate", str(stranger.path)]) == 2
    assert "--allow-code" in capsys.readouterr().err
    assert not canary.exists()


def test_allowed_it_runs_and_is_told_and_is_remembered(stranger, canary, caplog):
    caplog.set_level("INFO", logger="hf_recipes")
    with pytest.raises(UserError, match="no finished result"):  # the rest of the run is not there
        evaluate_run(stranger, allow_code=True)
    assert canary.exists() and "whose code runs here" in caplog.text
    canary.unlink()
    with pytest.raises(UserError, match="no finished result"):
        evaluate_run(stranger)


def test_what_a_recipe_trained_here_named_is_the_user_s_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluation = {"function": "own.py:score"}
    facts = {"recipe": {"evaluation": evaluation}}
    with pytest.raises(UserError):
        check_code(tmp_path, facts, allowed=False)
    remember_code(evaluation)
    check_code(tmp_path, facts, allowed=False)
    check_code(tmp_path, {"recipe": {"evaluation": {"function": f"{tmp_path}/x/../own.py:other"}}}, allowed=False)
    with pytest.raises(UserError):
        check_code(tmp_path, {"recipe": {"evaluation": {"function": f"{tmp_path}/else/own.py:score"}}}, allowed=False)


def test_a_link_put_in_the_place_of_a_known_name_is_seen(tmp_path):
    (tmp_path / "own.py").write_text("")
    remember_code({"function": f"{tmp_path / 'own.py'}:score"})
    (tmp_path / "own.py").unlink()
    (tmp_path / "evil.py").write_text("")
    (tmp_path / "own.py").symlink_to(tmp_path / "evil.py")
    with pytest.raises(UserError, match=r"evil\.py"):
        facts = {"recipe": {"evaluation": {"function": f"{tmp_path / 'own.py'}:score"}}}
        check_code(tmp_path, facts, allowed=False)


@pytest.mark.parametrize("facts", [None, [], {}, {"recipe": 1}, {"recipe": {"evaluation": [1]}}])
def test_records_without_a_function_pass(facts, tmp_path):
    check_code(tmp_path, facts, allowed=False)


@pytest.mark.parametrize("function", [3, "score", "a\0b.py:score", None])
def test_a_function_that_is_none_is_left_to_the_suite(function):
    assert code_file({"function": function}) is None


@pytest.mark.parametrize("content", ["", "[]", '{"files": 3}', '{"files": [1, null]}', "[" * 100_000])
def test_a_damaged_memory_asks_again(content, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "own_code.json").write_text(content)
    with pytest.raises(UserError):
        check_code(tmp_path, {"recipe": {"evaluation": {"function": "own.py:score"}}}, allowed=False)


@pytest.mark.parametrize("verb", sampled(VERBS, ["evaluate", "merge"]))
def test_no_verb_runs_what_a_record_asks_for(verb, stranger, canary, says_yes, capsys):
    try:
        code = main([verb, str(stranger.path), *VERBS[verb]])
    except SystemExit as error:
        code = error.code
    assert code in (0, 1, 2)
    assert not canary.exists() and says_yes.tell() == 0
    assert "Traceback" not in capsys.readouterr().err


HOSTILE = {
    "name": MARKUP + ESCAPE,
    "schema": 10**400,
    "seed": -(10**400),
    "world_size": 10**400,
    "global_batch_size": 10**400,
    "trainable_parameters": 10**400,
    "total_parameters": 10**400,
    "recipe": {
        "model_name_or_path": MARKUP,
        "datasets": [{"path": MARKUP + ESCAPE}],
        "learning_rate": 10**400,
        "max_steps": 10**400,
        MARKUP: MARKUP,
    },
    "base_model": {"name_or_path": MARKUP + ESCAPE, "revision": MARKUP},
    "versions": {MARKUP: MARKUP},
}


@pytest.fixture
def hostile(tmp_path):
    place = tmp_path / "hostile"
    place.mkdir()
    (place / "run.json").write_text(json.dumps(HOSTILE))
    events = [
        {"kind": "log", "step": step, "time": 1.0 * step, "rank": 0, "attempt": 1, "loss": value, MARKUP: 1.0}
        for step, value in enumerate([1.0, 10**400, "nan", -(10**400), MARKUP, None, [1], 2.0])
    ]
    events.append({"kind": "alarm", "step": 10**400, "time": 2.0, "detector": MARKUP, "message": MARKUP + ESCAPE})
    events.append({"kind": "generate", "step": 3, "time": 3.0, "prompt": MARKUP, "answer": MARKUP + ESCAPE})
    (place / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + "[" * 50_000 + "\n")
    (place / "status.json").write_text(json.dumps({"code": 10**400, "sentence": MARKUP + ESCAPE, "last_step": 1}))
    source = {"source": MARKUP + ESCAPE, "path": MARKUP, "role": MARKUP, "read": 10**400, "kept": 1}
    (place / "data.json").write_text(json.dumps({"sources": [source], "general_share": {"by": {MARKUP: 10**400}}}))
    (place / "evaluation.json").write_text("[" * 100_000)
    return RunDirectory(place)


def test_a_report_of_a_hostile_run_is_a_page_without_its_markup(hostile):
    page = write_report(hostile).read_text(encoding="utf-8")
    parsed = Page(page)
    assert "img" not in parsed.tags
    assert not {name for _, name in parsed.attributes if name.startswith("on")}
    assert "<img src=x onerror=alert(1)>" in parsed.text  # shown, as text
    assert page.count("<script") == 3  # the data, Plotly, the page's own
    assert "\x1b" not in page and "\x07" not in page


@pytest.mark.parametrize("verb", sampled(VERBS, ["verify", "evaluate"]))
def test_a_hostile_run_moves_no_cursor_and_ends_no_verb_with_a_traceback(verb, hostile, capsys):
    try:
        code = main([verb, str(hostile.path), *VERBS[verb]])
    except SystemExit as error:
        code = error.code
    told = capsys.readouterr()
    assert code in (0, 1, 2)
    for text in (told.out, told.err):
        assert "Traceback" not in text
        assert not set(text) & {"\x1b", "\x07", "\r", "\x9b"}


DAMAGED = ["[" * 100_000, '{"schema": ' + "9" * 5000 + "}", "[]", "null", "{", '{"recipe": 1}']


@pytest.mark.parametrize("content", sampled(DAMAGED, DAMAGED[:2]))
@pytest.mark.parametrize("verb", sampled(VERBS, ["evaluate", "doctor"]))
def test_a_record_that_is_none_ends_no_verb_with_a_traceback(verb, content, tmp_path, capsys):
    (tmp_path / "run.json").write_text(content)
    try:
        code = main([verb, str(tmp_path), *VERBS[verb]])
    except SystemExit as error:
        code = error.code
    assert code in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_json_too_deep_is_a_damaged_file_everywhere(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "run.json")
    with pytest.raises(UserError, match="not valid JSON"):
        RunDirectory(tmp_path).read(tmp_path / "run.json")


@pytest.mark.parametrize("name", ["report.html", "curves.png"])
def test_a_link_in_a_run_does_not_choose_what_is_overwritten(name, stranger, tmp_path, capsys):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (stranger.path / name).symlink_to(precious)
    main(["report", str(stranger.path)])
    assert precious.read_text() == "precious"


def test_a_link_out_is_named_where_it_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / "run.json").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="links out of the directory") as error:
        write_text(tmp_path / "run" / "run.json", "new")
    assert error.value.filename == str(tmp_path / "run" / "run.json")
    assert (tmp_path / "precious").read_text() == "precious"


def test_answers_are_not_written_through_links(stranger, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (stranger.path / "evaluation").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"links out of the directory.*delete the link"):
        evaluate_run(stranger, allow_code=True)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_out_of_a_model_is_not_uploaded(tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (place / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (place / "notes.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(UserError, match=r"notes\.txt' links out of the directory"):
        files_to_push(place)
    (place / "notes.txt").unlink()
    (place / "notes.txt").symlink_to(place / "model.safetensors")
    assert set(files_to_push(place).content) == {"model.safetensors", "notes.txt"}


def test_what_is_copied_from_elsewhere_is_told(tmp_path, caplog):
    (tmp_path / "secret.txt").write_text("secret")
    adapter, output = tmp_path / "adapter", tmp_path / "out"
    (adapter / "additional_chat_templates").mkdir(parents=True)
    output.mkdir()
    (adapter / "additional_chat_templates" / "x.jinja").symlink_to(tmp_path / "secret.txt")
    copy_files(adapter, output, ["additional_chat_templates"])
    assert "x.jinja links out of the directory" in caplog.text


def test_yaml_of_many_aliases_does_not_fill_the_memory(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match="more than 100,000 values"):
        load_recipe(str(tmp_path / "bomb.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "seed: " + "9" * 5000,
        "seed: !!int x",
        "seed: !!python/object/apply:os.system [true]",
        "datasets: !!binary '***'",
        pytest.param("datasets: " + "[" * 1200, marks=pytest.mark.trials, id="deep"),
        "a: &a [*a]",
        "? [1, 2]\n: 3",
        "? {a: 1}\n: 3",
        "datasets: !!set {a, b}",
        "seed: !!timestamp 2026-99-99",
    ],
)
def test_odd_yaml_is_one_sentence(text, tmp_path):
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        load_recipe(str(tmp_path / "odd.yaml"))
    assert "\n" not in str(error.value)


@pytest.mark.trials
def test_a_whole_run_of_a_stranger_runs_nothing(
    stranger, tiny_model_dir, tiny_model, tokenizer, tmp_path, canary, evil, says_yes, capfd
):
    """Base and result both bring Python, which is not needed; the tokenizer names it, and its template wants out."""
    import shutil

    from peft import LoraConfig, get_peft_model

    base = shutil.copytree(tiny_model_dir, tmp_path / "base")
    adapter = stranger.path / "adapter"
    get_peft_model(tiny_model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")).save_pretrained(
        adapter
    )
    tokenizer.save_pretrained(adapter)
    for place in (base, adapter):
        (place / "evil.py").write_text(evil)
        (place / "chat_template.jinja").write_text(
            "{{ messages[0]['content'] }}{{ cycler.__init__.__globals__.os.system('touch " + str(canary) + "') }}"
        )
        for name, more in (
            ("config.json", {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}),
            ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}}),
            ("adapter_config.json", {"base_model_name_or_path": str(base)}),
        ):
            if (place / name).is_file():
                (place / name).write_text(json.dumps({**json.loads((place / name).read_text()), **more}))
    record = json.loads(stranger.run_json.read_text())
    del record["recipe"]["evaluation"]["function"]
    record["base_model"] = {"name_or_path": str(base), "revision": None}
    stranger.run_json.write_text(json.dumps(record))
    for command in (
        ["verify", str(adapter), "--level", "reload"],
        ["verify", str(base), "--level", "reload"],
        ["evaluate", str(stranger.path)],
        ["merge", str(stranger.path), "--to", "bf16", "--proof", "logits"],
        ["export", str(stranger.path), "--forms", "adapter,merged-bf16,bnb-4bit"],
        ["evaluate", str(stranger.path), "--against", "base", "--fresh"],
        ["report", str(stranger.path)],
    ):
        code = main(command)
        told = capfd.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in told.err, (command, told.err)
        assert not canary.exists(), command
    assert says_yes.tell() == 0
