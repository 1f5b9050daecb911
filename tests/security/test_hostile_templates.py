"""Chat templates of strangers: rendered in the sandbox of transformers, wherever a template is rendered."""

from __future__ import annotations

import contextlib

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.core.generation import render_prompt
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.reading.formats import Example
from hf_recipes.models.soundness import tell_soundness

CONVERSATION = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
# Ways out of Jinja that are known from its advisories and from write-ups on template injection.
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ lipsum.__globals__['os'].system('touch CANARY') }}",
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ joiner.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('CANARY', 'w') }}",
    "{{ strftime_now.__globals__['__builtins__']['open']('CANARY', 'w') }}",
    "{{ messages|map(attribute='__class__.__init__.__globals__')|list }}",
    "{{ (messages|attr('__class__')) }}{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ ('{0.__class__}' ~ '').format_map({'0': messages}) }}",
    "{% set f = ''['format'] %}{{ f('{0.__class__.__mro__}') }}",
    "{{ messages.append({'role': 'system', 'content': 'added'}) }}",
    "{{ messages.clear() }}",
    "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
    "{% include '/etc/passwd' %}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ config.__class__ }}{{ request.application.__globals__ }}",
]
SECRETS = ("root:x:", "<class 'object'>", "subprocess", "site-packages")


@pytest.fixture(params=ESCAPES)
def hostile(request, tokenizer, canary):
    before = tokenizer.chat_template
    tokenizer.chat_template = request.param.replace("CANARY", str(canary))
    yield tokenizer
    tokenizer.chat_template = before


def rendered(tokenizer) -> str:
    messages = [dict(message) for message in CONVERSATION]
    try:
        text = tokenizer.decode(render_prompt(tokenizer, messages))
    except Exception as error:  # refused, in whatever words
        text = str(error)
    assert messages == CONVERSATION
    return text


def test_a_template_gets_at_nothing_but_its_messages(hostile, canary):
    text = rendered(hostile)
    assert not canary.exists()
    assert not any(secret in text for secret in SECRETS)


def test_training_rows_are_rendered_in_the_same_sandbox(hostile, canary):
    messages = [dict(message) for message in CONVERSATION]
    try:
        Encoder(hostile, True, False).encode([Example(messages=messages, trained=[False, True])])
    except (UserError, ValueError) as error:
        assert not any(secret in str(error) for secret in SECRETS)
    assert not canary.exists() and messages == CONVERSATION


def test_the_check_of_soundness_too(hostile, canary, tiny_model):
    with contextlib.suppress(UserError):
        tell_soundness(tiny_model, hostile, None)
    assert not canary.exists()


def test_what_a_row_says_is_no_template(tokenizer, canary):
    """Jinja in a row's text is text."""
    evil = "{{ cycler.__init__.__globals__.os.system('touch " + str(canary) + "') }}{% include '/etc/passwd' %}"
    text = tokenizer.decode(render_prompt(tokenizer, [{"role": "user", "content": evil}]))
    assert evil in text and not canary.exists()


def test_a_range_beyond_the_sandbox_s_bound_is_refused(tokenizer):
    before = tokenizer.chat_template
    tokenizer.chat_template = "{% for i in range(10**9) %}x{% endfor %}"
    try:
        with pytest.raises(Exception, match="Range too big"):
            render_prompt(tokenizer, CONVERSATION)
    finally:
        tokenizer.chat_template = before
