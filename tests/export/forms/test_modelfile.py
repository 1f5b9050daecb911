from __future__ import annotations

import pytest

from hf_recipes.export.forms.chat_pieces import ChatPieces
from hf_recipes.export.forms.modelfile import end_tokens, go_template, modelfile, sampling, write_modelfile

PIECES = ChatPieces(
    start="<sys>Be kind</sys>",
    system=("<sys>", "</sys>"),
    user=("<u>", "</u>"),
    assistant=("<a>", "</a>"),
    answer="<a>",
)


def test_the_whole_file():
    assert modelfile("./m.gguf", PIECES, ["</a>", '"'], {"temperature": 0.6}, 131072) == (
        "# ollama create NAME -f Modelfile\n"
        "FROM ./m.gguf\n"
        'TEMPLATE """{{ if not .System }}<sys>Be kind</sys>{{ end }}{{ range .Messages }}'
        '{{ if eq .Role "system" }}<sys>{{ .Content }}</sys>{{ else if eq .Role "user" }}<u>{{ .Content }}</u>'
        '{{ else if eq .Role "assistant" }}<a>{{ .Content }}</a>{{ end }}{{ end }}<a>"""\n'
        'PARAMETER stop "</a>"\n'
        'PARAMETER stop """""""\n'  # three, the quote itself, three
        "PARAMETER temperature 0.6\n"
        "# The model has 131,072 positions; the cache for them takes memory.\n"
        "PARAMETER num_ctx 8192\n"
    )


def test_without_a_template_none_is_made_up():
    assert "TEMPLATE" not in modelfile(".", None, ["</s>"], {}, None)


def test_braces_in_a_template_are_no_actions_to_go():
    pieces = ChatPieces("", None, ("{{u}}", ""), ("", ""), "")
    assert '{{ "{{" }}u}}{{ .Content }}' in go_template(pieces)


def test_all_end_tokens_stop(tokenizer):
    ids = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert end_tokens(tokenizer, {"eos_token_id": ids}) == ["<|endoftext|>", "<|im_end|>"]
    assert end_tokens(tokenizer, {"eos_token_id": ids[0]}) == ["<|endoftext|>", "<|im_end|>"]
    assert end_tokens(tokenizer, {}) == ["<|im_end|>"]


@pytest.mark.parametrize(
    ("generation", "settings"),
    [
        ({}, {}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0}),
        ({"temperature": 0.7, "repetition_penalty": 1.1}, {"temperature": 0.7, "repeat_penalty": 1.1}),
    ],
)
def test_sampling_settings_have_ollamas_names(generation, settings):
    assert sampling(generation) == settings


def test_a_written_file_renders_as_training_did(tokenizer, tmp_path):
    notices = write_modelfile(tmp_path, ".", tokenizer, adds_bos=False, generation={}, context=256)
    text = (tmp_path / "Modelfile").read_text()
    assert notices == []
    assert '{{ else if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n' in text
    assert text.endswith("PARAMETER num_ctx 256\n")


def test_a_bos_that_training_did_not_see_is_told(tokenizer, tmp_path):
    tokenizer = type(tokenizer).from_pretrained(_saved(tokenizer, tmp_path), bos_token="<|endoftext|>")
    notices = write_modelfile(tmp_path, ".", tokenizer, adds_bos=True, generation={}, context=None)
    assert notices == ["llama.cpp and Ollama put <|endoftext|> before each prompt, which the chat template does not."]


def test_a_template_that_cannot_be_translated_is_told(tokenizer, tmp_path):
    tokenizer = type(tokenizer).from_pretrained(_saved(tokenizer, tmp_path))
    tokenizer.chat_template = "{% for m in messages %}{{ loop.index }}:{{ m['content'] }}\n{% endfor %}"
    notices = write_modelfile(tmp_path, ".", tokenizer, adds_bos=False, generation={}, context=None)
    assert "no Go template was written" in notices[0]
    assert "TEMPLATE" not in (tmp_path / "Modelfile").read_text()


def _saved(tokenizer, directory):
    tokenizer.save_pretrained(directory / "tokenizer")
    return directory / "tokenizer"
