from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.clean.language import UNDECIDED, check_languages, detect_language


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The weather was fine, so we walked to the harbour and watched the ships for an hour.", "en"),
        ("Das Wetter war schön, also gingen wir zum Hafen und sahen eine Stunde lang den Schiffen zu.", "de"),
        ("天气很好，所以我们走到港口，看了一个小时的船，然后回家吃饭，晚上读了一本很有意思的书。", "zh"),
        ("Погода была хорошая, поэтому мы пошли в гавань и целый час смотрели на корабли.", "ru"),
        ("天気がよかったので、港まで歩いて、一時間ほど船を眺めてから家に帰りました。", "ja"),
    ],
)
def test_the_language_is_found(text, code):
    assert detect_language(text) == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "Yes, I do.",
        "https://example.org/der/das/die/und/eine/sehr/lange/adresse/mit/vielen/deutschen/worten",
        "```python\nfor number in range(10):\n    print('eins zwei drei vier', number, 'und so weiter')\n```",
        "def add(first, second):\n    result = first + second\n    return(result)\nprint(add(1, 2))\nx = add(3, 4)",
    ],
)
def test_short_texts_and_code_are_undecided(text):
    assert detect_language(text) == UNDECIDED


def test_real_rows_are_hardly_ever_taken_for_another_language(shared_data):
    for name, code in (("alpaca_en_demo.json", "en"), ("alpaca_zh_demo.json", "zh")):
        rows = json.loads((shared_data / name).read_text(encoding="utf-8"))[:300]
        found = [detect_language(f"{row['output']}\n{row['instruction']}\n{row['input']}") for row in rows]
        assert found.count(code) > 0.9 * len(rows)
        assert len(rows) - found.count(code) - found.count(UNDECIDED) <= 0.02 * len(rows)


def test_unknown_codes_are_refused():
    check_languages(["en", "zh", "no"])
    with pytest.raises(UserError, match=r"clean\.language: 'english' is no language known here"):
        check_languages(["english"])
