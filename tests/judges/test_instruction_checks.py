from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.instruction_checks import CHECKS
from hf_recipes.evaluation.judges.instructions import check_instructions, lenient_forms, read_instructions
from hf_recipes.evaluation.judges.sentences import sentences

# instruction, arguments, an answer that follows it, one that does not
CASES = [
    ("keywords:existence", {"keywords": ["cat", "c++"]}, "A CAT writes C++.", "A cat writes."),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "at least"}, "Cat, cat.", "One cat."),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "less than"}, "One cat.", "Cat, cat."),
    ("keywords:forbidden_words", {"forbidden_words": ["can"]}, "A candle.", "I CAN."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "Zz", "z"),
    ("language:response_language", {"language": "de"}, "Das ist ein ganz gewöhnlicher deutscher Satz.",
     "This is quite an ordinary English sentence."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", "Mr. One."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One. *** Two. ***", "One. *** *** Two."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "only two", "now here three"),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "First.\n\n\"Then, it went", "Then.\n\nIt went"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] of [town]", "[name] of town]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\np. s. again", "Bye. PS again"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye. P.P.S again", "Bye. P.S. again"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n - two", "* one\n** two"),
    ("detectable_format:constrained_response", {}, "Well. My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and **two**", "*one* and ** **"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1\na\nSection 2\nb", "Section 1\nSection B"),
    ("detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<<  >>"),
    ("combination:two_responses", {}, "one\n******\nother", "one ****** one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. Here.", "Here: say it."),
    ("startend:end_checker", {"end_phrase": "The end."}, "So. THE END.\n", "The end. Or not"),
    ("startend:quotation", {}, '"quoted"', '"'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "THIS is LOUD-ER", "THIS is Loud"),
    ("change_case:english_capital", {}, "THIS IS ALL IN CAPITAL LETTERS", "THIS IS NOT ALL in CAPITALS"),
    ("change_case:english_lowercase", {}, "this is all in small letters", "This is not all in small letters"),
    ("punctuation:no_comma", {}, "none here", "one, here"),
]  # fmt: skip


def row(name, arguments):
    return {"instruction_id_list": [name], "kwargs": [arguments]}


def strict(name, arguments, answer):
    (verdict,) = check_instructions(answer, [row(name, arguments)])
    assert verdict.name == name
    assert verdict.lenient or not verdict.strict
    return verdict.strict


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES)
def test_each_instruction_is_told_followed_or_not(name, arguments, good, bad):
    if name.startswith(("language", "change_case:english")):
        pytest.importorskip("langdetect")
    assert strict(name, arguments, good)
    assert not strict(name, arguments, bad)
    assert not strict(name, arguments, "  ")  # an empty answer follows nothing, not even "no comma"


def test_all_25_instructions_of_the_paper_have_a_case():
    assert {case[0] for case in CASES} == set(CHECKS)
    assert len(CHECKS) == 25


@pytest.mark.parametrize(("name", "arguments"), [case[:2] for case in CASES if not case[0].startswith("language")])
@pytest.mark.parametrize("part", ["[", "<<", "*", " \n", "p.", "...", "\ud800"], ids=ascii)
def test_hostile_answers_do_not_hang(name, arguments, part):
    check_instructions(part * 100_000, [row(name, arguments)])


def test_the_eight_lenient_forms():
    assert lenient_forms("a\n*b*\nc") == ["a\n*b*\nc", "*b*\nc", "a\n*b*", "*b*", "a\nb\nc", "b\nc", "a\nb", "b"]


def test_lenient_forgives_an_introduction_a_remark_and_asterisks():
    quotation = row("startend:quotation", {})
    for answer in ('Sure:\n"yes"', '"yes"\nThat is it.', 'Sure:\n**"yes"**\nBye'):
        (verdict,) = check_instructions(answer, [quotation])
        assert (verdict.strict, verdict.lenient) == (False, True)
    (verdict,) = check_instructions('it is "yes"', [quotation])
    assert not verdict.lenient


def test_arguments_of_other_instructions_that_are_null_are_passed_over():
    table_row = row("punctuation:no_comma", {"num_words": None, "keywords": None})
    assert check_instructions("fine", [table_row])[0].strict
    assert check_instructions("fine", [{**table_row, "kwargs": [None]}])[0].strict


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"instruction_id_list": ["keywords:existance"]}, "did you mean 'keywords:existence'"),
        ({"kwargs": [{}]}, "length_constraints:number_words lacks 'num_words'"),
        ({"kwargs": [{"num_words": "3", "relation": "at least"}]}, 'num_words is "3", not a whole number'),
        ({"kwargs": [{"num_words": True, "relation": "at least"}]}, "num_words is true, not a whole number"),
        ({"kwargs": [{"num_words": 3, "relation": "at most"}]}, "not one of at least, less than"),
        ({"kwargs": [{"num_words": 3, "relation": "at least", "num_word": 1}]}, "takes no 'num_word' .did you mean"),
        ({"kwargs": []}, "lists of one length"),
        ({"instruction_id_list": [], "kwargs": []}, "asks for nothing"),
        ({"prompt": ""}, "has no 'prompt'"),
    ],
)
def test_damaged_rows_are_named_with_their_line(tmp_path, changed, sentence):
    good = {
        "key": 1,
        "prompt": "Write.",
        **row("length_constraints:number_words", {"num_words": 3, "relation": "at least"}),
    }
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in (good, {**good, **changed})))
    with pytest.raises(UserError, match=f"line 2.*{sentence}"):
        read_instructions(file)
    file.write_text(json.dumps(good) + "\n\n" + json.dumps(good))
    assert [each.number for each in read_instructions(file)] == [1, 3]


def test_without_a_language_detector(tmp_path, monkeypatch, caplog):
    from hf_recipes.evaluation.judges import instruction_checks, instructions

    for module in (instructions, instruction_checks):
        monkeypatch.setattr(module, "detector_is_here", lambda: False)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "Klein.", **row("change_case:english_lowercase", {})}))
    with caplog.at_level("WARNING"):
        (read,) = read_instructions(file)
    assert "judged by the case alone" in caplog.text
    assert check_instructions("das ist klein geschrieben", [read.row])[0].strict
    file.write_text(json.dumps({"prompt": "Deutsch.", **row("language:response_language", {"language": "de"})}))
    with pytest.raises(UserError, match="line 1 asks for a language, which only langdetect"):
        read_instructions(file)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two? Three!", 3),
        ("Dr. Smith paid 3.50 dollars, i.e. little. J. Doe did not.", 2),
        ('He said "No!" Then he left...', 2),
        ("今天下雨。我在家！", 2),
        ("A heading\n\nand a text", 2),
        ("", 0),
        ("…!", 0),
    ],
)
def test_sentences(text, count):
    assert len(sentences(text)) == count


@settings(deadline=None)
@given(st.lists(st.text(alphabet="abcdefg ", min_size=3).map(str.strip).filter(lambda part: len(part) > 2), min_size=1))
def test_as_many_sentences_as_were_written(parts):
    assert len(sentences(" ".join(f"X{part}y." for part in parts))) == len(parts)
