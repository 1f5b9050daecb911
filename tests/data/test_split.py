from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.formats import Example
from hf_recipes.data.split import Splitter, duplicate_key

SHARE = st.floats(0, 0.9)


def test_a_tenth_is_held_out_at_random():
    keys = [str(number) for number in range(1000)]
    train, held_out = Splitter(0.1, seed=1).split(keys)
    assert (len(train), len(held_out)) == (900, 100)
    assert sorted(train + held_out) == list(range(1000))
    assert held_out != list(range(900, 1000))  # not the tail of the file
    assert Splitter(0.1, seed=1).split(keys) == (train, held_out)
    assert Splitter(0.1, seed=2).split(keys) != (train, held_out)


@given(st.lists(st.sampled_from("abcdefghij"), max_size=40), SHARE, st.integers(0, 5))
def test_d4_duplicates_lie_on_one_side(keys, share, seed):
    train, held_out = Splitter(share, seed).split(keys)
    assert sorted(train + held_out) == list(range(len(keys)))
    assert not {keys[index] for index in train} & {keys[index] for index in held_out}
    assert len(held_out) <= max(1, round(share * len(keys)))
    assert train or not keys


def test_d4_duplicates_lie_on_one_side_across_sources():
    splitter = Splitter(0.3, seed=3)
    first, second = [str(number) for number in range(50)], [str(number) for number in range(25, 75)]
    _, held_out_first = splitter.split(first)
    _, held_out_second = splitter.split(second)
    train_second = set(second) - {second[index] for index in held_out_second}
    assert not {first[index] for index in held_out_first} & train_second
    assert len(held_out_first) == len(held_out_second) == 15


def test_no_share_holds_nothing_out_and_one_row_is_never_split():
    assert Splitter(0, 1).split(["a", "b"]) == ([0, 1], [])
    assert Splitter(0.5, 1).split(["a", "a", "a"]) == ([0, 1, 2], [])


def test_white_space_and_unicode_composition_do_not_hide_duplicates():
    def key(answer):
        return duplicate_key(Example([{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]))

    assert key("caf\u00e9  au\nlait ") == key("cafe\u0301 au lait")
    assert key("a") != key("b")
    assert duplicate_key(Example(text="a  b")) == duplicate_key(Example(text="a b"))
