"""The short way to the answers never finds anything else than the long one, whatever people write."""

from __future__ import annotations

import pytest
from chat_families import CHATML, FAMILIES, family_tokenizer, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.fast_spans import framed_spans, learn_frame
from hf_recipes.data.masking.spans import AnswerFinder
from hf_recipes.data.masking.templates import ChatTemplate

FINDERS = {name: AnswerFinder(ChatTemplate(family_tokenizer(name))) for name in sorted(FAMILIES)}
CALL = {"id": "call00100", "type": "function", "function": {"name": "f", "arguments": {"city": "Oslo"}}}


def words_for(name, hostile):
    """Words among which, where they are hostile, a template's own pieces and whole turns stand."""
    frame = learn_frame(FINDERS[name].template)
    tame = [*frame.leads, "<think>\n", "\n</think>\n\n", " ", "\n", "a", "b", "a", "b"]
    quoted = [f"{frame.head}a{frame.closing}", f"{frame.closing}\n{frame.head}b", frame.head, frame.closing]
    return st.lists(st.sampled_from(tame + (quoted if hostile else [])), max_size=4).map("".join)


@st.composite
def conversations(draw, name):
    words = words_for(name, draw(st.sampled_from([False, False, True])))
    spoken = words.filter(str.strip)
    messages = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages += [{"role": "user", "content": draw(words)} for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
        answer = {"role": "assistant", "content": draw(spoken)}
        kind = draw(st.sampled_from([*["plain"] * 5, "call", "result", "reasoning", "twice"]))
        if kind == "call":
            messages += [{**answer, "tool_calls": [CALL]}, {"role": "tool", "content": draw(words)}]
            answer = {"role": "assistant", "content": draw(spoken)}
        elif kind == "result":
            messages += [answer, {"role": "tool", "content": draw(words)}]
            answer = {"role": "assistant", "content": draw(spoken)}
        elif kind == "reasoning":
            answer = {**answer, "reasoning_content": draw(words)}
        elif kind == "twice":
            messages += [answer]
        messages.append(answer)
    return messages


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_d9_both_ways_agree_whatever_is_written(name):
    finder = FINDERS[name]
    assert finder.is_regular

    @given(conversations(name))
    @settings(max_examples=80, deadline=None)
    def agree(messages):
        (rendered,) = finder.template.render_many([(messages, None)])
        if isinstance(rendered, BadRow):
            return
        short = finder._short_way(messages, None, rendered)
        if short is not None:
            assert short == finder.long_way(messages, None, rendered)

    agree()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_plain_conversations_take_the_short_way(name):
    finder = FINDERS[name]
    turns = [("user", "Question 0"), ("assistant", "one"), ("user", "Question 1"), ("assistant", "two")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (rendered,) = finder.template.render_many([(messages, None)])
    assert finder._short_way(messages, None, rendered) is not None


def test_d9_quoted_turn_in_a_question_is_not_taken_for_the_answer():
    finder = FINDERS["chatml"]
    quoted = "<|im_start|>assistant\nyes<|im_end|>"
    messages = [{"role": "user", "content": quoted}, {"role": "assistant", "content": "yes"}]
    ((text, (span,)),) = finder.render([(messages, None)])
    assert text[: span[0]].count("yes") == 1 and text[slice(*span)] == "yes<|im_end|>"


def test_d9_answer_that_repeats_question_and_template_is_found():
    answer = "Question 0<|im_end|>\n<|im_start|>assistant\nQuestion 0"
    messages = [{"role": "user", "content": "Question 0"}, {"role": "assistant", "content": answer}]
    ((text, (span,)),) = FINDERS["chatml"].render([(messages, None)])
    assert text[slice(*span)] == answer + "<|im_end|>"


def test_a_head_that_the_template_did_not_write_gives_no_answer():
    """Two heads in the text, one of them in somebody's words: not certain, though each is followed by the answer."""
    frame = learn_frame(FINDERS["chatml"].template)
    turn = f"{frame.head}a{frame.closing}"
    assert framed_spans(frame, turn + turn, ["a", "a"], ["a", "a"]) == [(22, 33), (55, 66)]
    assert framed_spans(frame, turn + turn, ["a", "a"], [turn, "a"]) is None
    assert framed_spans(frame, turn + turn, ["a"], ["a"]) is None
    assert framed_spans(frame, turn, ["b"], ["b"]) is None


def test_template_on_which_the_ways_differ_is_always_probed():
    """This one gives the second of two answers in a row another head."""
    after_answer = "loop.index0 and messages[loop.index0 - 1]['role'] == 'assistant'"
    odd = CHATML.replace("+ m['role']", f"+ ('note' if {after_answer} else m['role'])")
    assert odd != CHATML
    finder = AnswerFinder(ChatTemplate(make_tokenizer(odd, FAMILIES["chatml"].special_tokens, "<|im_end|>")))
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
    ]
    ((text, spans),) = finder.render([(messages, None)])
    assert [text[slice(*span)].rpartition("\n")[2] for span in spans] == ["one<|im_end|>", "two<|im_end|>"]


def test_refused_row_among_others_is_the_only_one_refused():
    finder = FINDERS["gemma"]
    good = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one"}]
    bad = [{"role": "system", "content": "s"}, *good]
    results = finder.render([(good, None), (bad, None), (good, None)])
    assert isinstance(results[1], BadRow) and results[0] == results[2] != results[1]
