from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.choosing.near_duplicates import (
    BANDS,
    BYTES_PER_ROW,
    Signer,
    chance_of_finding,
    estimated_jaccard,
    near_clusters,
    near_repeats,
)
from hf_recipes.data.clean import optional
from hf_recipes.data.clean.shingles import shingle_hashes

WORDS = [f"word{number}" for number in range(400)]
SIGNER = Signer()


def sentence(rng: random.Random, words: int) -> list[str]:
    return [rng.choice(WORDS) for _ in range(words)]


def changed(rng: random.Random, words: list[str], changes: int) -> list[str]:
    words = list(words)
    for place in rng.sample(range(len(words)), changes):
        words[place] = f"other{rng.random()}"
    return words


def jaccard(one: str, other: str) -> float:
    first, second = (set(shingle_hashes([text], SIGNER.ngram)[0].tolist()) for text in (one, other))
    return len(first & second) / len(first | second)


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def test_a_row_takes_128_bytes_whatever_its_length():
    bands = SIGNER.bands(["short", "long " * 5000, ""])
    assert bands.shape == (3, BANDS) and bands.dtype == np.uint64
    assert bands[0].nbytes == BYTES_PER_ROW == 128
    assert SIGNER.bands([]).shape == (0, BANDS)


@given(st.lists(st.text(max_size=60), min_size=1, max_size=10), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_exact_copies_always_meet(texts, rng):
    copies = [*texts, *texts]
    rng.shuffle(copies)
    labels = near_clusters(SIGNER.bands(copies))
    for one in range(len(copies)):
        first = copies.index(copies[one])
        assert labels[one] == labels[first] and labels[one] <= one
    assert np.array_equal(labels[labels], labels)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_texts_without_a_common_shingle_never_meet(seed):
    rng = random.Random(seed)
    texts = [" ".join(f"w{seed}n{number}x{place}" for place in range(rng.randrange(1, 60))) for number in range(40)]
    for threshold in (0.5, 0.8):
        assert len(set(near_clusters(SIGNER.bands(texts), threshold).tolist())) == len(texts)


def test_the_estimate_is_within_the_error_of_128_minima():
    rng = random.Random(1)
    first = [sentence(rng, rng.choice([20, 60, 200])) for _ in range(600)]
    second = [changed(rng, words, rng.randrange(0, len(words) // 4)) for words in first]
    one, other = ([" ".join(words) for words in some] for some in (first, second))
    true = np.array([jaccard(*pair) for pair in zip(one, other, strict=True)])
    error = estimated_jaccard(SIGNER.bands(one), SIGNER.bands(other)) - true
    # The deviation of a mean of 128 draws is at most 0.5 / sqrt(128) = 0.044.
    assert abs(error.mean()) < 0.01 and np.sqrt((error**2).mean()) < 0.044 and np.abs(error).max() < 0.2


@pytest.mark.parametrize(("changes", "near"), [(1, True), (40, False)])
def test_near_is_what_shares_most_triples(changes, near):
    rng = random.Random(2)
    first = [sentence(rng, 100) for _ in range(100)]  # 1 change: J = 95 / 101; 40: J about 0.15
    texts = [" ".join(words) for pair in ((words, changed(rng, words, changes)) for words in first) for words in pair]
    labels = near_clusters(SIGNER.bands(texts))
    assert np.array_equal(labels[::2], np.arange(0, 200, 2))
    assert (labels[1::2] == labels[::2]).all() == near and (labels[1::2] == labels[::2]).any() == near


def test_chinese_near_duplicates_are_found():
    rng = random.Random(3)
    texts = []
    for _ in range(50):
        characters = [chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(120)]
        texts.append("".join(characters))
        characters[rng.randrange(120)] = "，"
        texts.append("".join(characters))
    labels = near_clusters(SIGNER.bands(texts))
    assert np.array_equal(labels, np.repeat(np.arange(0, 100, 2), 2))


def test_case_and_white_space_make_no_difference_but_signs_do():
    bands = SIGNER.bands(["The Cat sat\n on it", "the cat  sat on IT", "3 + 4 = 7", "3 - 4 = 7"])
    assert np.array_equal(bands[0], bands[1]) and not np.array_equal(bands[2], bands[3])


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.8, 0.9]))
@settings(max_examples=25, deadline=None)
def test_the_clusters_do_not_depend_on_the_order_of_the_rows(seed, threshold):
    rng = random.Random(seed)
    texts = [sentence(rng, 40) for _ in range(12)]
    while len(texts) < 60:
        texts.append(changed(rng, rng.choice(texts), rng.randrange(0, 8)))
    bands = SIGNER.bands([" ".join(words) for words in texts])
    order = np.random.default_rng(seed).permutation(len(bands))
    moved = near_clusters(bands[order], threshold)
    back = np.empty_like(moved)
    back[order] = moved
    assert partition(back) == partition(near_clusters(bands, threshold))


def test_the_chance_of_being_compared_is_as_derived():
    assert chance_of_finding(0.8) == pytest.approx(1 - (1 - 0.8**8) ** 16, abs=0.01)
    assert chance_of_finding(0.9) > 0.999 and chance_of_finding(0.3) < 0.01
    assert chance_of_finding(0.6, 0.5) > 0.98  # low thresholds are served by 32 bands of 4


def test_large_groups_of_unlike_rows_are_told_apart():
    """3,000 rows that share half of their text meet in bands by the thousand; only the copies are joined."""
    rng = random.Random(4)
    head = sentence(rng, 60)
    texts = [" ".join(head + sentence(rng, 60)) for _ in range(3000)]
    texts += texts[:20]
    labels = near_clusters(SIGNER.bands(texts))
    assert labels[3000:].tolist() == list(range(20))
    assert len(set(labels.tolist())) > 2990


def test_a_row_goes_only_for_one_like_it_that_stays():
    """A chain: each row is like the next, the ends are not alike."""
    rng = random.Random(5)
    words = sentence(rng, 100)
    chain = [" ".join(words)]
    for step in range(12):
        words[step * 8] = f"new{step}"
        chain.append(" ".join(words))
    chain.append(chain[0])
    bands = SIGNER.bands(chain)
    labels = near_clusters(bands)
    assert set(labels.tolist()) == {0}
    drop = near_repeats(bands, labels)
    kept = np.flatnonzero(~drop)
    assert 1 < len(kept) < len(chain) and not drop[0] and drop[-1]
    for row in np.flatnonzero(drop):
        assert max(estimated_jaccard(bands[row], bands[other]) for other in kept if other < row) >= 0.8
    for one in kept:
        assert all(estimated_jaccard(bands[one], bands[other]) < 0.8 for other in kept if other != one)


def test_bands_may_lie_in_a_file(tmp_path):
    bands = SIGNER.bands(["a b c d", "x y z", "a b c d"])
    np.save(tmp_path / "bands.npy", bands)
    mapped = np.load(tmp_path / "bands.npy", mmap_mode="r")
    assert near_clusters(mapped).tolist() == [0, 1, 0]
    assert near_repeats(mapped, near_clusters(mapped)).tolist() == [False, False, True]
    assert near_clusters(np.empty((0, 0), np.uint64)).tolist() == []


def test_wrong_use_is_told(monkeypatch):
    with pytest.raises(UserError, match=r"from 0\.5 to 1, not 0\.1"):
        near_clusters(SIGNER.bands(["a"]), 0.1)
    monkeypatch.setattr(optional.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs rensa.*pip install 'hf-recipes\[clean\]'"):
        SIGNER.bands(["a"])
