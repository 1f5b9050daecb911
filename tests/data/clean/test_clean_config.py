from __future__ import annotations

import pickle

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.clean.config import CleanConfig


@pytest.mark.parametrize("nothing", [None, False, "off", {}, []])
def test_everything_is_off_by_default(nothing):
    config = CleanConfig.from_mapping(nothing)
    assert config == CleanConfig()
    assert not any(value for key, value in config.to_dict().items() if key != "near_threshold" and value != "off")


def test_a_list_turns_rules_on_with_their_usual_settings():
    config = CleanConfig.from_mapping(["html", "duplicates", "longer_than_mean", "personal_data", "max_value_share"])
    assert (config.html, config.unicode, config.duplicates, config.longer_than_mean) == (True, False, "exact", 4.0)
    assert (config.personal_data, config.max_value_share) == ("report", 0.99)


def test_on_is_every_rule_that_needs_no_setting_but_drops_no_long_rows():
    config = CleanConfig.from_mapping(True)
    assert config.html and config.unicode and config.control_characters and config.empty and config.special_tokens_only
    assert (config.duplicates, config.personal_data, config.max_value_share) == ("exact", "report", 0.99)
    assert config.longer_than_mean is None and config.max_chars is None and config.language == ()
    assert CleanConfig.from_mapping("on") == config


def test_settings_are_read_as_yaml_leaves_them():
    config = CleanConfig.from_mapping(
        {"html": "on", "max_chars": "2e4", "longer_than_mean": True, "language": "EN", "duplicates": "near"}
    )
    assert (config.html, config.max_chars, config.longer_than_mean) == (True, 20000, 4.0)
    assert (config.language, config.duplicates) == (("en",), "near")
    assert CleanConfig.from_mapping({"duplicates": False, "personal_data": "off", "longer_than_mean": "off"}) == (
        CleanConfig()
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"htlm": True}, r"clean\.htlm is not a cleaning rule \(did you mean 'html'\?\)"),
        (["duplicate"], r"clean\.duplicate is not .*'duplicates'"),
        ({"html": "maybe"}, r"clean\.html must be on or off"),
        ({"duplicates": "fuzzy"}, r"clean\.duplicates must be off, exact or near"),
        ({"personal_data": "mask"}, r"clean\.personal_data must be off, report or drop"),
        ({"max_chars": 0}, r"clean\.max_chars must be a whole number"),
        ({"max_chars": 10.5}, r"clean\.max_chars must be a whole number"),
        (["max_chars"], r"clean\.max_chars must be a whole number"),
        ({"longer_than_mean": 1}, r"clean\.longer_than_mean must be a number above 1"),
        ({"longer_than_mean": "inf"}, r"clean\.longer_than_mean"),
        ({"near_threshold": 0.2}, r"clean\.near_threshold must be a share from 0\.5 to 1"),
        ({"near_threshold": "off"}, r"clean\.near_threshold"),
        ({"max_value_share": 1}, r"clean\.max_value_share must be a share"),
        (["language"], r"clean\.language must be the languages to keep"),
        ({"language": [False]}, r"clean\.language"),
        (7, r"clean must be on, off, a list of rules"),
    ],
)
def test_u1_wrong_settings_are_told_in_one_sentence(values, said):
    with pytest.raises(UserError, match=said):
        CleanConfig.from_mapping(values)


def test_the_cache_key_holds_row_rules_and_no_others():
    base = CleanConfig.from_mapping(["html"])
    assert base.for_rows() != CleanConfig.from_mapping(["html", "empty"]).for_rows()
    corpus = CleanConfig.from_mapping(
        {"html": True, "duplicates": "near", "longer_than_mean": 3, "near_threshold": 0.9}
    )
    assert base.for_rows() == corpus.for_rows()
    assert pickle.loads(pickle.dumps(corpus)) == corpus
