from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.text import (
    TEXT_SCORES,
    WordTokenizer,
    bleu_tokenizer,
    corpus_scores,
    squad_normalized,
    token_f1,
)

ANSWER, REFERENCE = "the cat sat on the mat", "the cat sat on a mat"


def test_squad_normalisation():
    assert squad_normalized("The  Cat's an (old) A-Team!") == "cats old ateam"


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        # cat sat on mat / cat is on mat: 3 shared of 4 and 4
        ("The cat sat on the mat.", "a cat is on a mat", 2 * 3 / 8),
        ("x x y", "x z", 2 * 1 / 5),  # the second x has no partner
        ("the", "a", 1.0),  # articles alone: nothing on either side
        ("the", "cat", 0.0),
        ("我爱北京", "我爱南京", 2 * 3 / 8),  # by characters: 3 of 4
        ("我爱Python", "我爱 python", 1.0),
    ],
)
def test_token_f1_by_hand(answer, reference, score):
    assert token_f1(answer, reference) == pytest.approx(score)


@settings(deadline=None)
@given(st.text(), st.text())
def test_f1_is_symmetric_and_full_for_equals(left, right):
    assert token_f1(left, right) == token_f1(right, left)
    assert 0 <= token_f1(left, right) <= 1
    assert token_f1(left, left) == 1


def test_rouge_by_hand():
    # one 'the' of the answer is not in the reference: 5 of 6 words, 3 of 5 pairs, the longest common subsequence is 5
    assert TEXT_SCORES["rouge"](ANSWER, [REFERENCE]) == pytest.approx(
        {"rouge1": 5 / 6, "rouge2": 3 / 5, "rougeL": 5 / 6}
    )


def test_bleu_by_hand():
    # n-grams of the answer that are in the reference: 5/6, 3/5, 2/4, 1/3; lengths are equal, so no penalty
    expected = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)
    assert TEXT_SCORES["bleu"](ANSWER, [REFERENCE])["bleu"] == pytest.approx(expected)
    assert corpus_scores("bleu", [ANSWER], [[REFERENCE]])["bleu"] == pytest.approx(expected)


def test_bleu_of_a_corpus_is_not_a_mean():
    # 4-grams: 1/3 of the first, 1/1 of the second → 2/4 over both; likewise 9/10, 6/8, 4/6
    answers, references = [ANSWER, "one two three four"], [[REFERENCE], ["one two three four"]]
    corpus = corpus_scores("bleu", answers, references)["bleu"]
    assert corpus == pytest.approx((9 / 10 * 6 / 8 * 4 / 6 * 2 / 4) ** (1 / 4))
    single = [TEXT_SCORES["bleu"](answer, texts)["bleu"] for answer, texts in zip(answers, references, strict=True)]
    assert abs(corpus - sum(single) / 2) > 0.05


def test_answers_with_different_numbers_of_references():
    assert corpus_scores("bleu", ["a b c d", "e f g h"], [["a b c d"], ["x", "e f g h"]])["bleu"] == pytest.approx(1)
    assert corpus_scores("exact_match", ["a", "b"], [["a"], ["x", "b "]]) == {"exact_match": 1.0}


@pytest.mark.parametrize("name", TEXT_SCORES)
def test_every_score_is_full_for_the_reference_itself_and_nil_for_another(name):
    text = "ein kleiner Satz mit genau acht eigenen Wörtern"
    assert all(value == pytest.approx(1) for value in TEXT_SCORES[name](text, ["nothing alike", text]).values())
    assert all(value < 0.1 for value in TEXT_SCORES[name]("xyz", ["foo bar quux"]).values())


@pytest.mark.parametrize("name", TEXT_SCORES)
@pytest.mark.parametrize("text", ["", "\ud800 broken", "x" * 100_000, "\x00", "مرحبا بالعالم"])
def test_odd_answers_get_a_share(name, text):
    for value in TEXT_SCORES[name](text, ["some reference"]).values():
        assert 0 <= value <= 1
    assert all(value == pytest.approx(0) for value in TEXT_SCORES[name]("", ["some reference"]).values())


def test_chinese_is_not_one_word_to_rouge_and_bleu():
    scores = TEXT_SCORES["rouge"]("我爱北京", ["我爱南京"])
    assert scores["rouge1"] == pytest.approx(3 / 4)  # the package's own tokeniser finds no word at all
    assert TEXT_SCORES["bleu"]("我今天爱北京", ["我今天爱南京"])["bleu"] > 0.3


@pytest.mark.parametrize(
    ("references", "tokenizer"),
    [
        (["The cat"], "13a"),
        (["한국어 문장"], "13a"),
        (["我爱北京"], "zh"),
        (["我爱 Py 北京"], "zh"),
        (["ひらがなを書く"], "char"),
        (["สวัสดีครับ"], "char"),
        (["In Beijing (北京) it rains"], "13a"),
        ([""], "13a"),
    ],
)
def test_tokenizer_follows_the_script_of_the_references(references, tokenizer):
    assert bleu_tokenizer(references) == tokenizer


@settings(deadline=None)
@given(st.text(alphabet=string.printable))
def test_words_of_ascii_text_are_those_of_rouge_score(text):
    from rouge_score.tokenizers import DefaultTokenizer

    assert WordTokenizer().tokenize(text) == DefaultTokenizer(use_stemmer=False).tokenize(text)


@pytest.mark.parametrize(("name", "package"), [("rouge", "rouge_score"), ("bleu", "sacrebleu"), ("chrf", "sacrebleu")])
def test_a_missing_package_is_a_sentence_with_the_command(name, package, monkeypatch):
    import importlib

    def absent(module, *rest):
        if module.startswith(package):
            raise ImportError(module)
        return original(module, *rest)

    original = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", absent)
    from hf_recipes.evaluation.judges import text

    text._rouge_scorer.cache_clear()
    text._bleu.cache_clear()
    with pytest.raises(UserError, match=rf"{package} is not installed: run pip install 'hf-recipes\[evaluate\]'"):
        TEXT_SCORES[name]("a", ["b"])
