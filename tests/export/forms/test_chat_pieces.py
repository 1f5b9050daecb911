from __future__ import annotations

import jinja2
import pytest

from hf_recipes.export.forms.chat_pieces import ChatPieces, take_apart

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are SmolLM<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = '<s>' + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
GEMMA = (
    "{{ '<s>' }}{% if messages[0]['role'] == 'system' %}{{ raise('no system') }}{% endif %}{% for m in messages %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}{{ '<start_of_turn>' + role + '\n' "
    "+ m['content'] + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}"
    "{% endif %}"
)
# Counts turns: what a turn looks like depends on its place.
NUMBERED = "{% for m in messages %}{{ loop.index }}:{{ m['content'] }}\n{% endfor %}"
# Drops what was thought in earlier answers, as reasoning models' templates do.
LAST_ONLY = (
    "{% for m in messages %}[{{ m['role'] }}]{% if m['role'] == 'assistant' and not loop.last %}...{% else %}"
    "{{ m['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def renderer(template):
    environment = jinja2.Environment()

    def refuse(text):
        raise jinja2.TemplateError(text)

    environment.globals["raise"] = refuse
    compiled = environment.from_string(template)
    return lambda messages, ask: compiled.render(messages=messages, add_generation_prompt=ask)


def test_a_default_system_message_is_kept():
    pieces = take_apart(renderer(SMOLLM2))
    assert pieces == ChatPieces(
        start="<|im_start|>system\nYou are SmolLM<|im_end|>\n",
        system=("<|im_start|>system\n", "<|im_end|>\n"),
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        answer="<|im_start|>assistant\n",
    )


def test_a_token_that_the_runtime_puts_first_is_left_to_it():
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    pieces = take_apart(renderer(LLAMA3), "<s>")
    assert pieces is not None
    assert pieces.start == ""
    assert pieces.system == (head.format("system"), "<|eot_id|>")


def test_a_first_token_that_nothing_else_adds_stays_in_the_template():
    assert take_apart(renderer(GEMMA)).start == "<s>"


def test_a_template_without_a_system_role_has_none():
    pieces = take_apart(renderer(GEMMA), "<s>")
    assert pieces.system is None
    assert pieces.assistant == ("<start_of_turn>model\n", "<end_of_turn>\n")


@pytest.mark.parametrize("template", [NUMBERED, LAST_ONLY], ids=["counts turns", "cuts earlier answers"])
def test_what_is_no_plain_row_of_turns_is_not_translated(template):
    assert take_apart(renderer(template)) is None


@pytest.mark.parametrize("template", [SMOLLM2, LLAMA3, GEMMA])
def test_pieces_make_the_templates_own_text(template):
    render = renderer(template)
    talk = [
        {"role": "user", "content": "a {{ b }} {% c %}"},
        {"role": "assistant", "content": '{"d": 1}'},
        {"role": "user", "content": "line\n\nline"},
    ]
    assert take_apart(render).render(talk) == render(talk, True)
