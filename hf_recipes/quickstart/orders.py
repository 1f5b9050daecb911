"""The quickstart's task: orders as people write them → strict JSON of a given schema. Seeded; pure Python.

Each row is drawn as plain fields first and worded second, so its answer is right by construction: a field that the
text does not mention is null. The wording mixes core sentences, places for the customer and the date, greetings and
closings; amounts are digits or words, dates come in several forms of the one year the system prompt states.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_json, write_text

YEAR = 2026
SYSTEM_PROMPT = f"JSON: customer, item, quantity, date ({YEAR})."
_CUSTOMER_SHARE, _QUANTITY_SHARE, _DATE_SHARE = 0.75, 0.9, 0.7
_UNSEEN_SHARE = 0.25
_LARGEST_QUANTITY = 40


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


NUMBER_WORD = dict(
    enumerate(
        _listed(
            "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, "
            "sixteen, seventeen, eighteen, nineteen, twenty"
        ),
        start=2,
    )
)
MONTHS = _listed("January, February, March, April, May, June, July, August, September, October, November, December")

_CORES_WITH_QUANTITY = (
    "{quantity} {item}",
    "I need {quantity} {item}",
    "I'd like {quantity} {item}",
    "We want {quantity} {item}",
    "We need {quantity} {item}",
    "We are short of {item}, send {quantity}",
    "I would like to order {quantity} {item}",
    "Please send {quantity} {item}",
    "Please ship {quantity} {item}",
    "Please put {quantity} {item} aside",
    "Could we get {quantity} {item}",
    "Can you send me {quantity} {item}",
    "Can I have {quantity} {item}",
    "Do you still have {item}? I take {quantity}",
    "Send over {quantity} {item}",
    "Order: {quantity} {item}",
    "Order: {item}, {quantity} pieces",
    "New order, {quantity} {item}",
    "{item}, {quantity} of them",
    "{item} x {quantity}",
    "{quantity} of your {item}",
    "Book {quantity} {item}",
    "Add {quantity} {item} to my order",
    "Kindly deliver {quantity} {item}",
    "We ran out of {item}. We need {quantity} more",
    "My last {item} were great. Now I want {quantity}",
    "Reserve {quantity} {item}",
    "It's {quantity} {item} this time",
)
_CORES_WITHOUT_QUANTITY = (
    "I need some {item}",
    "Please send {item}",
    "Could we get more {item}",
    "Order: {item}",
    "We ran out of {item}",
    "Some {item} please, I'll tell you how many later",
)
_CUSTOMER_PHRASES = (" for {customer}", ", name is {customer}", ", customer {customer}", ". It's for {customer}")
_CUSTOMER_OPENINGS = ("{customer} here. ", "This is {customer}. ", "Hi, {customer} here: ", "From {customer}: ")
_CUSTOMER_CLOSINGS = (". Thanks, {customer}", ". Regards, {customer}", ". {customer}", ". Best, {customer}")
_DATE_PHRASES = (
    " by {date}",
    ", due {date}",
    " for {date}",
    ". Deliver on {date}",
    ", needed {date}",
    " before {date}",
)
_GREETINGS = ("", "", "", "", "Hello, ", "Hi! ", "Good morning. ", "Hey, ", "Dear team, ")
_CLOSINGS = ("", "", "", "", ". Thank you!", ", please", ". Cheers!", ". Thanks a lot.")

TRAINING_CUSTOMERS = _listed(
    "Anna, Ben, Carla, David, Emma, Felix, Grace, Hugo, Ines, Jack, Karen, Leo, Mia, Noah, Olga, Paul, Quinn, "
    "Rosa, Sam, Tina, Umar, Vera, Walter, Xenia, Yusuf, Zoe, Alice, Bruno, Clara, Daniel, Elena, Frank, Greta, "
    "Henry, Irene, James, Kira, Lucas, Maria, Nina, Oscar, Petra, Robert, Sofia, Thomas, Ursula, Victor, Wendy"
)
UNSEEN_CUSTOMERS = _listed("Amir, Bella, Cora, Dylan, Edith, Fiona, George, Hannah, Ivan, Julia, Kevin, Laura")
TRAINING_ITEMS = _listed(
    "apples, notebooks, coffee mugs, desk lamps, garden hoses, blue pens, phone cases, printer cartridges, wool "
    "socks, bike helmets, candles, tea bags, paper towels, wooden chairs, green folders, water bottles, light "
    "bulbs, leather belts, red apples, kitchen knives, flower pots, paint brushes, rubber boots, tennis balls, "
    "picture frames, phone cables, batteries, bath towels, soup bowls, storage boxes, door mats, glass jars, "
    "steel screws, envelopes, black shirts, pillows, rain jackets, chess sets, toy cars, hand soaps, orange "
    "juices, school bags, sun hats, wall clocks, yoga mats, white shirts, office chairs, markers"
)
UNSEEN_ITEMS = _listed(
    "green apples, table lamps, red pens, winter gloves, coffee cups, tool boxes, garden chairs, paper bags, "
    "plates, wool hats, keyboards, umbrellas"
)


@dataclass(frozen=True)
class Order:
    """What an order says: a customer's first name, a plural item, how many, and an ISO date; null where unsaid."""

    customer: str | None
    item: str
    quantity: int | None
    date: str | None

    def to_json(self) -> str:
        """The one right answer: compact JSON, keys in this order."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class OrderRow:
    """An order and its wording."""

    text: str
    order: Order

    def messages(self) -> list[dict[str, str]]:
        """The row as a conversation: system prompt, the text, the JSON."""
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": self.text},
            {"role": "assistant", "content": self.order.to_json()},
        ]


@dataclass(frozen=True)
class OrderFiles:
    """The files that `write_orders` made."""

    train: Path
    heldout: Path
    schema: Path


def order_schema() -> dict[str, Any]:
    """The JSON Schema (Draft 2020-12) an answer must fit: four fields, all required, nothing else."""
    date = rf"^{YEAR}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"
    properties = {
        "customer": {"type": ["string", "null"], "minLength": 1},
        "item": {"type": "string", "minLength": 1},
        "quantity": {"type": ["integer", "null"], "minimum": 1},
        "date": {"type": ["string", "null"], "pattern": date},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "order",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def generate_orders(train_rows: int, heldout_rows: int = 64, seed: int = 0) -> tuple[list[OrderRow], list[OrderRow]]:
    """Draw training and held-out rows; no text occurs twice, on one side or across.

    A quarter of the held-out rows' customers and items are names that training never shows.

    Raises:
        UserError: a count is negative.
    """
    if train_rows < 0 or heldout_rows < 0:
        raise UserError(f"Orders: {train_rows} training and {heldout_rows} held-out rows: counts cannot be negative.")
    random, taken = Random(seed), set[str]()
    heldout = [_new_row(random, taken, _UNSEEN_SHARE) for _ in range(heldout_rows)]
    train = [_new_row(random, taken, 0.0) for _ in range(train_rows)]
    return train, heldout


def write_orders(directory: Path, train_rows: int, heldout_rows: int = 64, seed: int = 0) -> OrderFiles:
    """Write ``train.jsonl``, ``heldout.jsonl`` (messages format) and ``schema.json`` into `directory`."""
    files = OrderFiles(directory / "train.jsonl", directory / "heldout.jsonl", directory / "schema.json")
    train, heldout = generate_orders(train_rows, heldout_rows, seed)
    for path, rows in ((files.train, train), (files.heldout, heldout)):
        write_text(path, "".join(json.dumps({"messages": row.messages()}, ensure_ascii=False) + "\n" for row in rows))
    write_json(files.schema, order_schema())
    return files


def _new_row(random: Random, taken: set[str], unseen_share: float) -> OrderRow:
    while True:
        order = _draw_order(random, unseen_share)
        text = _word(random, order)
        if text not in taken:
            taken.add(text)
            return OrderRow(text, order)


def _draw_order(random: Random, unseen_share: float) -> Order:
    customers = UNSEEN_CUSTOMERS if random.random() < unseen_share else TRAINING_CUSTOMERS
    items = UNSEEN_ITEMS if random.random() < unseen_share else TRAINING_ITEMS
    return Order(
        customer=random.choice(customers) if random.random() < _CUSTOMER_SHARE else None,
        item=random.choice(items),
        quantity=random.randint(2, _LARGEST_QUANTITY) if random.random() < _QUANTITY_SHARE else None,
        date=f"{YEAR}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"
        if random.random() < _DATE_SHARE
        else None,
    )


def _word(random: Random, order: Order) -> str:
    """Word `order`: a core sentence, then customer and date in a drawn order, a greeting, a closing."""
    cores: Sequence[str] = _CORES_WITHOUT_QUANTITY
    quantity = ""
    if order.quantity is not None:
        cores = _CORES_WITH_QUANTITY
        quantity = str(order.quantity)
        if order.quantity in NUMBER_WORD and random.random() < 0.5:
            quantity = NUMBER_WORD[order.quantity]
    opening, closing = random.choice(_GREETINGS), random.choice(_CLOSINGS)
    phrases = [random.choice(_DATE_PHRASES).format(date=_word_date(random, order.date))] if order.date else []
    if order.customer:
        place = random.choice(("opening", "phrase", "closing"))
        if place == "opening":
            opening = random.choice(_CUSTOMER_OPENINGS).format(customer=order.customer)
        elif place == "closing":
            closing = random.choice(_CUSTOMER_CLOSINGS).format(customer=order.customer)
        else:
            phrases.insert(
                random.randint(0, len(phrases)), random.choice(_CUSTOMER_PHRASES).format(customer=order.customer)
            )
    core = random.choice(cores).format(quantity=quantity, item=order.item)
    text = opening + core + "".join(phrases) + closing
    text = text[0].upper() + text[1:] if random.random() < 0.8 else text[0].lower() + text[1:]
    return text if text[-1] in ".!" or random.random() < 0.3 else text + "."


def _word_date(random: Random, date: str) -> str:
    _, month_number, day_number = (int(part) for part in date.split("-"))
    month, day = MONTHS[month_number - 1], day_number
    forms = (f"{month} {day}", f"{day} {month}", f"{month[:3]} {day}", f"the {ordinal(day)} of {month}", date)
    return random.choice(forms)


def ordinal(number: int) -> str:
    """``1`` → ``1st``, ``12`` → ``12th``, ``23`` → ``23rd``."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
