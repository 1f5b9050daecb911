"""Masks and end-of-turn tokens over families of chat templates (cases D8, D9, D11, D13)."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
from chat_families import CHATML, FAMILIES, family_tokenizer, make_tokenizer
from conversations import CALL, conversation, encode, learned

from hf_recipes.core.errors import UserError
from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.masking.templates import ChatTemplate, end_of_turn
from hf_recipes.data.reading.formats import Example

ANSWERS = ["Sure, here it is:\n\n  def f(x):\n    return x", "4", "naïve 日本語 ✓"]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {}}}]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request):
    return FAMILIES[request.param], family_tokenizer(request.param)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_d9_every_learned_span_is_the_answer_and_its_end(family, system):
    spec, tokenizer = family
    encoded = encode(tokenizer, conversation(ANSWERS, system if spec.has_system else None))
    spans = learned(tokenizer, encoded)
    for answer, span in zip(ANSWERS, spans, strict=True):
        said = span.removesuffix(spec.end_of_turn)
        assert said != span, "the end of the turn is not learned"
        # Qwen3's template itself puts an empty <think> block before the last answer, which the model has to write.
        assert said.removeprefix("<think>\n\n</think>\n\n").strip() == answer


def test_d8_end_of_turn_is_what_the_template_writes(family):
    spec, tokenizer = family
    end = end_of_turn(tokenizer)
    assert end.text == spec.end_of_turn
    assert end.token_id == tokenizer.convert_tokens_to_ids(spec.end_of_turn)
    encoded = encode(tokenizer, conversation(ANSWERS))
    assert [label for label in encoded.labels if label != IGNORED_LABEL][-1] == end.token_id


def test_d8_end_of_turn_is_not_taken_from_eos():
    tokenizer = family_tokenizer("gemma")
    assert tokenizer.eos_token == "<eos>"
    assert end_of_turn(tokenizer).text == "<end_of_turn>"


def test_d8_template_without_an_end_is_refused():
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    with pytest.raises(UserError, match="would never learn to stop"):
        end_of_turn(make_tokenizer(template, ("<s>", "</s>"), "</s>"))


def test_d11_tokens_are_the_template_rendered_once(family):
    _, tokenizer = family
    example = conversation(ANSWERS)
    expected = tokenizer.apply_chat_template(example.messages, tokenize=True)["input_ids"]
    assert encode(tokenizer, example).input_ids.tolist() == expected


def test_d11_tokenizer_that_adds_bos_does_not_double_it():
    from tokenizers import processors

    tokenizer = family_tokenizer("llama3")
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    assert tokenizer("x").input_ids[0] == tokenizer.bos_token_id
    assert encode(tokenizer, conversation(["4"])).input_ids.tolist().count(tokenizer.bos_token_id) == 1


def test_d11_template_with_two_bos_is_refused():
    tokenizer = family_tokenizer("llama3")
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    with pytest.raises(UserError, match="two BOS tokens"):
        encode(tokenizer, conversation(["4"]))


@pytest.mark.parametrize("trim_offsets", [True, False])
def test_d9_offsets_that_leave_out_spaces_make_no_difference(trim_offsets):
    tokenizer = family_tokenizer("chatml", trim_offsets=trim_offsets)
    answer = "return x\n\n\n   # end  "
    assert learned(tokenizer, encode(tokenizer, conversation([answer, answer]))) == [answer + "<|im_end|>"] * 2


def test_d9_space_glued_to_the_line_break_before_an_answer_is_not_learned():
    tokenizer = family_tokenizer("chatml")
    encoded = encode(tokenizer, conversation(["    return x"]))
    # The tokenizer makes one token of the header's line break and three spaces, which no prompt ends with.
    assert learned(tokenizer, encoded) == [" return x<|im_end|>"]


def test_d9_first_word_glued_to_the_space_before_it_is_learned():
    tokenizer = family_tokenizer("llama2", metaspace=True)
    answers = ["The capital of France is Paris.", "Sure"]
    assert learned(tokenizer, encode(tokenizer, conversation(answers))) == [f"{answer} </s>" for answer in answers]


def test_d9_answer_that_repeats_the_question_is_still_found():
    tokenizer = family_tokenizer("chatml")
    answer = "Question 0\nassistant\nQuestion 0"
    assert learned(tokenizer, encode(tokenizer, conversation([answer, "4"]))) == [
        answer + "<|im_end|>",
        "4<|im_end|>",
    ]


def test_d9_header_inside_the_template_s_markers_is_not_learned():
    marked = FAMILIES["chatml_marked"]
    wide = marked.template.replace(
        "{{ '<|im_start|>assistant\\n' }}\n{%- generation %}", "{% generation %}{{ '<|im_start|>assistant\\n' }}"
    )
    assert wide != marked.template
    tokenizer = make_tokenizer(wide, marked.special_tokens, marked.eos)
    assert learned(tokenizer, encode(tokenizer, conversation(["one", "two"]))) == ["one<|im_end|>", "two<|im_end|>"]


def test_d9_reasoning_dropped_from_earlier_turns():
    tokenizer = family_tokenizer("qwen3")
    answers = ["<think>\nhm\n</think>\n\nfirst", "<think>\nwell\n</think>\n\nsecond"]
    assert learned(tokenizer, encode(tokenizer, conversation(answers))) == [
        "first<|im_end|>",
        "<think>\nwell\n</think>\n\nsecond<|im_end|>",
    ]


def test_d9_template_that_alters_answers_is_refused_at_the_start():
    upper = CHATML.replace("m['content']", "m['content'] | upper")
    with pytest.raises(UserError, match="does not show the assistant's text once, so it cannot be trained on"):
        ChatTemplate(make_tokenizer(upper, FAMILIES["chatml"].special_tokens, "<|im_end|>"))


def test_d9_answer_that_a_template_alters_is_named():
    cut = CHATML.replace("m['content']", "m['content'].split('###')[0]")
    tokenizer = make_tokenizer(cut, FAMILIES["chatml"].special_tokens, "<|im_end|>")
    assert encode(tokenizer, conversation(["whole"])).supervised_tokens
    with pytest.raises(BadRow, match="alters an assistant turn"):
        encode(tokenizer, conversation(["first ### second"]))


def test_untrained_turns_are_masked_and_the_others_are_not(family):
    spec, tokenizer = family
    example = conversation(ANSWERS)
    example = Example(example.messages, [False, False, False, True, False, False])
    (span,) = learned(tokenizer, encode(tokenizer, example))
    assert span.strip().removesuffix(spec.end_of_turn).strip() == ANSWERS[1]


def test_whole_conversation_is_learned_when_asked_but_for_turns_of_weight_zero():
    tokenizer = family_tokenizer("chatml")
    example = conversation(["one", "two"])
    example = Example(example.messages, [False, False, False, True])
    encoded = encode(tokenizer, example, assistant_only_loss=False)
    assert "one" not in "".join(learned(tokenizer, encoded))
    assert "Question 1" in "".join(learned(tokenizer, encoded))


def test_plain_text_is_learned_whole_and_ends_with_one_eos():
    tokenizer = family_tokenizer("chatml")
    encoded = encode(tokenizer, Example(text="Hello there"))
    assert encoded.labels.tolist() == encoded.input_ids.tolist()
    assert tokenizer.decode(encoded.input_ids) == "Hello there<|endoftext|>"


def test_d13_refusal_of_the_template_is_the_row_s_reason():
    tokenizer = family_tokenizer("gemma")
    with pytest.raises(BadRow, match="refuses the row: System role not supported"):
        encode(tokenizer, conversation(["a"], system="s"))


def test_d13_tools_and_calls_are_written_out_where_the_template_ignores_them(caplog):
    tokenizer = family_tokenizer("chatml")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"degrees": 3}'},
        {"role": "assistant", "content": "3 degrees."},
    ]
    example = Example(messages, [False, False, True, False, True], TOOLS)
    encoder = Encoder(tokenizer)
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        encoded, _ = encoder.encode([example, example])
    assert learned(tokenizer, encoded) == [
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}<|im_end|>',
        "3 degrees.<|im_end|>",
    ]
    text = tokenizer.decode(encoded.input_ids)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions")
    assert '{"name": "get_weather", "description": "Weather", "parameters": {}}' in text
    assert sum("does not show tools" in record.message for record in caplog.records) == 1


def test_d13_tools_and_calls_stay_structured_where_the_template_shows_them():
    shows = (
        "{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
        "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + c.function.arguments | tojson }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = make_tokenizer(shows, FAMILIES["chatml"].special_tokens, "<|im_end|>")
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "3 degrees."},
    ]
    encoded = encode(tokenizer, Example(messages, [False, True, False, True], TOOLS))
    assert learned(tokenizer, encoded) == ['<call>get_weather{"city": "Oslo"}<|im_end|>', "3 degrees.<|im_end|>"]
    assert "You can call these functions" not in tokenizer.decode(encoded.input_ids)


def test_d13_turns_a_template_would_leave_out_in_silence_are_named():
    silent = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] in ['user', 'assistant'] %}")
    tokenizer = make_tokenizer(silent, FAMILIES["chatml"].special_tokens, "<|im_end|>")
    with pytest.raises(BadRow, match="leaves out system turns"):
        encode(tokenizer, conversation(["a"], system="s"))


def test_tokenizer_without_chat_template_is_refused_for_conversations_only():
    tokenizer = make_tokenizer(None, ("<s>", "</s>"), "</s>")
    assert encode(tokenizer, Example(text="Hello")).input_ids.size
    with pytest.raises(UserError, match="has no chat template"):
        encode(tokenizer, conversation(["a"]))


def test_probing_happens_on_the_template_in_use():
    tokenizer = family_tokenizer("phi3")
    assert ChatTemplate(tokenizer).closing == "<|end|>"
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|endoftext|>")
    assert ChatTemplate(tokenizer).closing == "<|endoftext|>"


def test_arrays_are_int32_and_the_learned_tokens_are_counted():
    encoded = encode(family_tokenizer("chatml"), conversation(["one", "two"]))
    assert encoded.input_ids.dtype == encoded.labels.dtype == np.int32
    assert encoded.supervised_tokens == sum(label != IGNORED_LABEL for label in encoded.labels.tolist())
    assert encoded.lost_answers == 0


@pytest.mark.parametrize(
    ("trained", "kept"),
    [([True, True, True], 2), ([True, True, False], 1), ([True, False, False], 0)],
)
def test_mask_history_learns_the_last_answer_whose_flag_is_on(family, trained, kept):
    spec, tokenizer = family
    messages = conversation(ANSWERS).messages
    example = Example(messages, [flag for answer in trained for flag in (False, answer)])
    (span,) = learned(tokenizer, encode(tokenizer, example, mask_history=True))
    said = span.removesuffix(spec.end_of_turn).removeprefix("<think>\n\n</think>\n\n")
    assert span.endswith(spec.end_of_turn) and said.strip() == ANSWERS[kept]


def test_mask_history_with_nothing_to_learn_learns_nothing():
    tokenizer = family_tokenizer("chatml")
    example = Example(conversation(["one"]).messages, [False, False])
    assert encode(tokenizer, example, mask_history=True).supervised_tokens == 0


def test_mask_history_needs_masks():
    with pytest.raises(UserError, match="needs assistant_only_loss"):
        Encoder(family_tokenizer("chatml"), assistant_only_loss=False, mask_history=True)


@pytest.mark.parametrize("used", [False, True])
def test_encoder_goes_to_another_process_and_encodes_the_same_there(family, used):
    _, tokenizer = family
    encoder, example = Encoder(tokenizer), conversation(ANSWERS)
    if used:  # what it has found out about the template goes with it
        encoder.encode([example])
    (there,) = pickle.loads(pickle.dumps(encoder)).encode([example])
    (here,) = encoder.encode([example])
    assert there.input_ids.tolist() == here.input_ids.tolist() and there.labels.tolist() == here.labels.tolist()


def test_faults_take_their_rows_places_among_texts_and_conversations():
    encoder = Encoder(family_tokenizer("gemma"))
    rows = [conversation(["a"], system="s"), Example(text="text"), conversation(["b"]), conversation(["c"], "s")]
    kinds = [type(result).__name__ for result in encoder.encode(rows)]
    assert kinds == ["BadRow", "Encoded", "Encoded", "BadRow"]


def test_d13_function_calls_and_results_of_a_template_with_tokens_of_its_own():
    tokenizer = family_tokenizer("mistral_tools")
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "3 degrees."},
    ]
    encoded = encode(tokenizer, Example(messages, [False, True, False, True], TOOLS))
    call = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]</s>'
    assert learned(tokenizer, encoded) == [call, " 3 degrees.</s>"]
    assert "[AVAILABLE_TOOLS] [{" in tokenizer.decode(encoded.input_ids)


def test_d13_empty_and_consecutive_user_turns_are_kept_as_they_are():
    tokenizer = family_tokenizer("chatml")
    messages = [{"role": "user", "content": text} for text in ("", "First", "Second")]
    example = Example([*messages, {"role": "assistant", "content": "one"}], [False, False, False, True])
    encoded = encode(tokenizer, example)
    assert learned(tokenizer, encoded) == ["one<|im_end|>"]
    assert tokenizer.decode(encoded.input_ids).count("<|im_start|>user\n") == 3


def test_d8_end_that_only_the_next_turn_writes_is_learned_after_the_last_answer_too(caplog):
    glm = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )
    tokenizer = make_tokenizer(glm, ("<|endoftext|>", "<|user|>", "<|assistant|>"), "<|endoftext|>")
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        encoded = encode(tokenizer, conversation(["one", "two"]))
    assert learned(tokenizer, encoded) == ["one<|user|>", "two<|user|>"]
    assert end_of_turn(tokenizer).text == "<|user|>"
    assert "writes nothing after an answer" in caplog.text


def test_d8_end_of_sequence_between_turns_only_is_no_end():
    lacks = CHATML.replace(
        "'<|im_end|>\\n' }}{% endfor", "'\\n' }}{% if not loop.last %}{{ eos_token }}{% endif %}{% endfor"
    )
    assert lacks != CHATML
    with pytest.raises(UserError, match="would never learn to stop"):
        end_of_turn(make_tokenizer(lacks, FAMILIES["chatml"].special_tokens, "<|endoftext|>"))
