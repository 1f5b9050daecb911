"""Every chat template that TRL ships: what is learned is what the assistant says and its end (D8, D9, D11).

The tokenizers are made here, with the special tokens that a template names.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from chat_families import make_tokenizer
from conversations import CALL, learned

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.masking.templates import ChatTemplate
from hf_recipes.data.reading.formats import Example

TEMPLATES = sorted((Path(find_spec("trl").origin).parent / "chat_templates").glob("*.jinja"))
SPECIAL = re.compile(
    r"<\|[^\s<>{}%'\"]{1,40}?\|?>|<[a-z_]{1,20}\|>|<｜[^\s<>]{1,40}?｜>|</?s>|<(?:start|end)_of_[a-z]+>"
    r"|<sop>|\[gMASK\]|\[/?[A-Z_]{3,}\]"
)
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VISION = "shows only typed parts of text and image, not plain text"
REFUSED_TEMPLATES = {"idefics3": VISION, "llava_next": VISION, "smolvlm": VISION}
REFUSED_CASES = {  # the templates' own words, or what would be left out
    ("gemma", "system"): "System role not supported",
    ("gemma", "tools"): "System role not supported",
    ("gemma3", "tools"): "roles must alternate",
    ("cohere", "tools"): "roles must alternate",
    ("cohere2", "tools"): "roles must alternate",
    ("phi3", "tools"): "leaves out tool turns",
    ("phi3_5", "tools"): "leaves out tool turns",
}
# Written by the model before its words: reasoning and its frame, the recipient of a message, the head of a turn that
# the generation prompt leaves to the model after a tool result (DiffusionGemma).
BEFORE_WORDS = re.compile(
    r"(\s*(<think>)?[^<]*</think>\s*|<\|channel\|>final<\|message\|>| to=user<\|message\|>|<\|turn>model\n"
    r"|<\|channel\|>analysis<\|message\|>[^<]*<\|end\|><\|start\|>assistant<\|channel\|>final<\|message\|>"
    r"| to=self<\|message\|>[^<]*<\|eom\|><\|start\|>assistant to=user<\|message\|>"
    r"|<\|channel>thought\n[^<]*<channel\|>|\n)?"
)
SCHEMA = {
    "name": "get_weather",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}},
}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


RESULT = {"role": "tool", "content": "42", "name": "get_weather", "tool_call_id": CALL["id"]}
CASES = {
    "single": ([user("Q0"), assistant("Sure:\n\n  def f(x):\n    return x")], None),
    "multi": (
        [user("Q0"), assistant("one"), user("Q1"), assistant("two words"), user("Q2"), assistant("日本語 é")],
        None,
    ),
    "system": ([{"role": "system", "content": "Be brief."}, user("Q0"), assistant("one")], None),
    "spaces": ([user("Q0"), assistant("  one\n"), user("Q1"), assistant("\ntwo ")], None),
    "reasoning": (
        [user("Q0"), assistant("one", reasoning_content="hm"), user("Q1"), assistant("two", reasoning_content="well")],
        None,
    ),
    "tools": (
        [
            user("Weather?"),
            assistant("", tool_calls=[CALL]),
            RESULT,
            assistant("cold"),
            user("Thanks"),
            assistant("Bye"),
        ],
        [{"type": "function", "function": SCHEMA}],
    ),
}


def family_of(path):
    return path.stem.removesuffix("_training")


def tokenizer_for(path):
    template = path.read_text()
    special = sorted(set(SPECIAL.findall(template)))
    tokenizer = make_tokenizer(template, ("<bos>", "<eos>", *special), "<eos>")
    tokenizer.add_tokens([token for token in ADDED if token in template])
    return tokenizer


TRAINABLE = [path for path in TEMPLATES if family_of(path) not in REFUSED_TEMPLATES]


@pytest.fixture(scope="module", params=TRAINABLE, ids=lambda path: path.stem)
def template(request):
    return family_of(request.param), Encoder(tokenizer_for(request.param))


def encode(encoder, case):
    messages, tools = CASES[case]
    (encoded,) = encoder.encode([Example(messages, [message["role"] == "assistant" for message in messages], tools)])
    return encoded


def test_the_templates_are_there():
    assert len(TEMPLATES) > 70 and {family_of(path) for path in TEMPLATES} >= REFUSED_TEMPLATES.keys()


@pytest.mark.parametrize("family", sorted(REFUSED_TEMPLATES))
def test_d9_template_without_plain_text_is_refused_at_the_start(family):
    for path in (path for path in TEMPLATES if family_of(path) == family):
        with pytest.raises(UserError, match=r"does not show the assistant's text|fails on one question"):
            ChatTemplate(tokenizer_for(path))


@pytest.mark.parametrize("case", sorted(CASES))
def test_d9_what_is_learned_is_what_the_assistant_says_and_its_end(template, case):
    family, encoder = template
    encoded = encode(encoder, case)
    if (family, case) in REFUSED_CASES:
        assert isinstance(encoded, BadRow) and REFUSED_CASES[family, case] in encoded.reason
        return
    assert not isinstance(encoded, BadRow), encoded
    spans = learned(encoder.tokenizer, encoded)
    answers = [message for message in CASES[case][0] if message["role"] == "assistant"]
    for answer, span in zip(answers, spans, strict=True):
        ends = encoder.template.tokens_in(span)
        assert ends and ends[-1][1] == len(span), "no end of turn is learned"
        if answer.get("tool_calls"):
            assert "get_weather" in span and "Oslo" in span
        else:
            said = span[BEFORE_WORDS.match(span).end() :]
            words = answer["content"]
            shown = next(form for form in (words, words.rstrip(), words.strip()) if said.startswith(form))
            assert not SPECIAL.sub("", said.removeprefix(shown)).strip(), span
    assert spans[-1].endswith(encoder.template.end_of_turn.text)
    assert "42" not in "".join(spans)
    if case == "reasoning":  # where it is shown, it is learned
        assert ("well" in encoder.tokenizer.decode(encoded.input_ids)) == ("well" in spans[-1])


@pytest.mark.parametrize("case", sorted(CASES))
def test_d11_tokens_are_the_template_rendered_once(template, case):
    family, encoder = template
    if (family, case) in REFUSED_CASES:
        return
    messages, tools = CASES[case]
    fitted, tools, _ = encoder.template.fit(Example(messages, [False] * len(messages), tools))
    once = encoder.tokenizer.apply_chat_template(fitted, tools=tools, tokenize=True)["input_ids"]
    implied = encoder.tokenizer.convert_tokens_to_ids([end for end in encoder.template.implied_ends[:1] if end])
    ids = encode(encoder, case).input_ids.tolist()
    assert ids == once + implied
    bos = encoder.tokenizer.bos_token_id
    assert ids[:2] != [bos, bos]


@pytest.mark.parametrize("case", sorted(CASES))
def test_d9_both_ways_agree(template, case):
    _, encoder = template
    finder, (messages, tools) = encoder._finder, CASES[case]
    (rendered,) = finder.template.render_many([(messages, tools)])
    if finder.is_regular and not isinstance(rendered, BadRow):
        short = finder._short_way(messages, tools, rendered)
        assert short is None or short == finder.long_way(messages, tools, rendered)


def test_only_glm_ends_by_the_next_turn(template):
    family, encoder = template
    is_plain_glm = family == "glm4moe" and not encoder.template.has_markers
    assert encoder.template.implied_ends == (("<|user|>", "<|observation|>") if is_plain_glm else ("", ""))


@pytest.mark.parametrize("case", sorted(CASES))
def test_d8_glm_is_learned_as_in_the_training_template_that_trl_writes_for_it(case):
    plain, trains = (Encoder(tokenizer_for(path)) for path in TEMPLATES if family_of(path) == "glm4moe")
    ours, theirs = (encode(encoder, case) for encoder in (plain, trains))
    assert learned(plain.tokenizer, ours) == learned(trains.tokenizer, theirs)
    assert plain.tokenizer.decode(ours.input_ids) == trains.tokenizer.decode(theirs.input_ids)
