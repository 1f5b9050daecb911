from __future__ import annotations

import json
import re
from datetime import date

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.quickstart import orders
from hf_recipes.quickstart.orders import generate_orders, order_schema, ordinal, write_orders

VALIDATOR = jsonschema.Draft202012Validator(order_schema())
SEEDS = st.integers(0, 2**32)


def wordings_of_date(iso: str) -> set[str]:
    """All forms a date may take in the text, written out apart from the generator."""
    day = date.fromisoformat(iso)
    month, short = day.strftime("%B"), day.strftime("%b")
    ending = {1: "st", 21: "st", 2: "nd", 22: "nd", 3: "rd", 23: "rd"}.get(day.day, "th")
    return {iso, f"{month} {day.day}", f"{day.day} {month}", f"{short} {day.day}", f"the {day.day}{ending} of {month}"}


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_every_answer_fits_the_schema_and_the_text_says_what_it_claims(seed):
    train, heldout = generate_orders(40, 40, seed)
    for row in (*train, *heldout):
        answer = json.loads(row.messages()[-1]["content"])
        VALIDATOR.validate(answer)
        text = row.text.lower()
        assert answer["item"].lower() in text
        if answer["quantity"] is not None:
            words = {str(answer["quantity"]), orders.NUMBER_WORD.get(answer["quantity"], "")} - {""}
            assert any(re.search(rf"\b{word}\b", text) for word in words)
        if answer["date"] is not None:
            assert any(form.lower() in text for form in wordings_of_date(answer["date"]))
        if answer["customer"] is not None:
            assert re.search(rf"\b{answer['customer'].lower()}\b", text)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_what_the_answer_leaves_null_the_text_does_not_say(seed):
    customers = {name.lower() for name in (*orders.TRAINING_CUSTOMERS, *orders.UNSEEN_CUSTOMERS)}
    months = [month.lower() for month in orders.MONTHS]
    numbers = re.compile(rf"\b(\d+|{'|'.join(orders.NUMBER_WORD.values())})\b")
    for row in generate_orders(60, 20, seed)[0]:
        text = row.text.lower()
        if row.order.customer is None:
            assert not customers & set(re.findall(r"\w+", text))
        if row.order.date is None:
            assert not any(month in text for month in months) and "2026" not in text
        if row.order.quantity is None and row.order.date is None:
            assert not numbers.search(text)


@given(SEEDS, st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=25, deadline=None)
def test_counts_are_exact_no_text_repeats_and_the_seed_decides(seed, train_rows, heldout_rows):
    train, heldout = generate_orders(train_rows, heldout_rows, seed)
    assert (len(train), len(heldout)) == (train_rows, heldout_rows)
    assert len({row.text for row in (*train, *heldout)}) == train_rows + heldout_rows
    assert generate_orders(train_rows, heldout_rows, seed) == (train, heldout)


def test_held_out_rows_do_not_depend_on_the_number_of_training_rows():
    assert generate_orders(10, 64, 1)[1] == generate_orders(500, 64, 1)[1]


def test_held_out_rows_hold_names_and_items_that_training_never_shows():
    train, heldout = generate_orders(300, 64, 0)
    seen_items, seen_customers = {row.order.item for row in train}, {row.order.customer for row in train}
    # A quarter of 64 rows is 16; fewer than 6 would be beyond three standard deviations (3.5).
    assert sum(row.order.item not in seen_items for row in heldout) >= 6
    assert sum(row.order.customer is not None and row.order.customer not in seen_customers for row in heldout) >= 4
    assert not set(orders.UNSEEN_ITEMS) & seen_items and not set(orders.UNSEEN_CUSTOMERS) & seen_customers


def test_the_wording_is_varied_and_fields_are_missing_at_the_stated_rates():
    rows, _ = generate_orders(2000, 0, 3)
    skeletons = set()
    for row in rows:
        text = row.text.replace(row.order.item, "ITEM").replace(row.order.item.capitalize(), "ITEM")
        skeletons.add(re.sub(r"\d+|\b(" + "|".join(orders.NUMBER_WORD.values()) + r")\b", "N", text.split(".")[0]))
    assert len(skeletons) > 100
    # Three standard deviations of a share among 2000 rows are at most 0.034.
    for field, share in (("customer", 0.25), ("quantity", 0.1), ("date", 0.3)):
        missing = sum(getattr(row.order, field) is None for row in rows) / len(rows)
        assert missing == pytest.approx(share, abs=0.034), field


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"item": None},
        {"item": ""},
        {"quantity": 0},
        {"quantity": "12"},
        {"quantity": 1.5},
        {"date": "3 March"},
        {"date": "2025-03-03"},
        {"date": "2026-13-01"},
        {"customer": 5},
    ],
)
def test_the_schema_refuses_what_is_not_an_order(change):
    order = {"customer": "Anna", "item": "pens", "quantity": 3, "date": "2026-03-03"}
    assert VALIDATOR.is_valid(order)
    assert not VALIDATOR.is_valid({**order, **change})


@pytest.mark.parametrize("field", ["customer", "item", "quantity", "date"])
def test_the_schema_requires_every_field(field):
    order = {"customer": None, "item": "pens", "quantity": None, "date": None}
    assert VALIDATOR.is_valid(order)
    assert not VALIDATOR.is_valid({key: value for key, value in order.items() if key != field})


def test_the_schema_itself_is_sound():
    jsonschema.Draft202012Validator.check_schema(order_schema())


def test_ordinals():
    numbers = [1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 28]
    assert [ordinal(n) for n in numbers] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "22nd",
        "23rd",
        "28th",
    ]


def test_write_orders_writes_messages_and_the_schema(tmp_path):
    files = write_orders(tmp_path / "data", train_rows=5, heldout_rows=3, seed=4)
    train, heldout = generate_orders(5, 3, 4)
    for path, rows in ((files.train, train), (files.heldout, heldout)):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert lines == [{"messages": row.messages()} for row in rows]
        assert [message["role"] for message in lines[0]["messages"]] == ["system", "user", "assistant"]
    assert json.loads(files.schema.read_text()) == order_schema()


def test_negative_counts_are_refused():
    with pytest.raises(UserError, match="cannot be negative"):
        generate_orders(-1)


@pytest.mark.real_model
def test_rows_fit_the_token_budget_of_the_real_tokenizer(smollm2_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    train, heldout = generate_orders(500, 64, 0)
    whole = tokenizer.apply_chat_template([row.messages() for row in train], return_dict=True)["input_ids"]
    assert sum(map(len, whole)) / len(whole) <= 80
    answers = [tokenizer(row.order.to_json() + "<|im_end|>")["input_ids"] for row in (*train, *heldout)]
    assert max(map(len, answers)) <= 48
