from __future__ import annotations

from chat_families import family_tokenizer
from datasets import Dataset
from test_masks import conversation, encode

from hf_recipes.data.inspect import render_batches, render_sample

TOKENIZER = family_tokenizer("chatml")


def test_learned_text_is_marked_and_all_text_is_there():
    encoded = encode(TOKENIZER, conversation(["one", "two"]))
    text = render_sample(encoded.input_ids, encoded.labels, TOKENIZER, color=False)
    assert "<|im_start|>assistant\n«one<|im_end|>»\n<|im_start|>user" in text
    assert text.replace("«", "").replace("»", "") == TOKENIZER.decode(encoded.input_ids)
    colored = render_sample(encoded.input_ids, encoded.labels, TOKENIZER, color=True)
    assert "assistant\n\033[32mtwo<|im_end|>\033[0m\n" in colored


def test_batches_are_headed_by_number_and_origin():
    samples = [encode(TOKENIZER, conversation([str(number)])) for number in range(5)]
    dataset = Dataset.from_list(
        [{"input_ids": s.input_ids, "labels": s.labels, "row_id": f"f.json:{n}"} for n, s in enumerate(samples)]
    )
    lines = list(render_batches(dataset, TOKENIZER, batches=2, batch_size=2))
    assert len(lines) == 8
    # "0" and the end of the turn are learned.
    assert lines[0] == f"── batch 1, f.json:0: {len(samples[0].input_ids)} tokens, 2 learned"
    assert lines[6].startswith("── batch 2, f.json:3:")
    assert len(list(render_batches(dataset, TOKENIZER, batches=9, batch_size=2))) == 10
