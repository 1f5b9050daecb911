"""Which links are called slow, and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.doctor.network.links import Link, pairs_to_measure, slow_links, slow_sentences


def mesh(per_host, hosts, slow=lambda source, target: False, across=1e9, inside=1e10):
    """All links of ranks on hosts node0 …; slow ones at a tenth."""
    ranks = range(per_host * hosts)
    made = []
    for source in ranks:
        for target in ranks:
            if source != target:
                ends = (f"node{source // per_host}", f"node{target // per_host}")
                speed = inside if ends[0] == ends[1] else across
                made.append(Link(source, target, *ends, speed / 10 if slow(*ends) else speed, 1e-4))
    return made


def test_equal_links_are_not_told_though_those_inside_a_machine_are_ten_times_faster():
    assert slow_sentences(mesh(2, 3)) == []
    assert slow_sentences([]) == []


def test_a_machine_all_of_whose_links_are_slow_is_named_once():
    sentences = slow_sentences(mesh(2, 3, lambda source, target: source != target and "node1" in (source, target)))
    assert len(sentences) == 1
    assert sentences[0].startswith("Every link from or to node1 is slow: 0.8 Gbit/s at worst, against 8 Gbit/s")


def test_one_direction_is_enough():
    sentences = slow_sentences(mesh(1, 3, lambda source, target: source == "node2"))
    assert [text.split(" is slow")[0] for text in sentences] == ["Every link from or to node2"]


def test_a_pair_of_ranks_is_named_where_the_machine_is_not_to_blame():
    links = mesh(2, 2)
    bad = next(link for link in links if (link.source, link.target) == (1, 0))
    links[links.index(bad)] = Link(1, 0, "node0", "node0", 1e9, 1e-4)
    (sentence,) = slow_sentences(links)
    assert "from rank 1 (node0) to rank 0 (node0) is slow: 8 Gbit/s, against 80 Gbit/s of the best inside" in sentence


def test_between_two_machines_no_host_is_to_blame():
    links = [Link(0, 1, "node0", "node1", 1e9, 1e-4), Link(1, 0, "node1", "node0", 1e8, 1e-4)]
    (sentence,) = slow_sentences(links)
    assert "from rank 1 (node1) to rank 0 (node0) is slow" in sentence


@given(st.lists(st.floats(1e6, 1e11), min_size=1, max_size=12))
def test_the_best_link_is_never_slow(speeds):
    links = [Link(number, number + 1, "a", "b", speed, 0.0) for number, speed in enumerate(speeds)]
    slow = slow_links(links)
    assert max(links, key=lambda link: link.bytes_per_second) not in slow
    assert all(3 * link.bytes_per_second < max(speeds) for link in slow)


@pytest.mark.parametrize(("ranks", "hosts", "count"), [(2, 1, 1), (4, 2, 6), (8, 1, 28), (64, 8, 63 + 28 - 0)])
def test_pairs_are_all_or_those_that_matter(ranks, hosts, count):
    names = [f"node{rank * hosts // ranks}" for rank in range(ranks)]
    pairs = pairs_to_measure(names)
    assert len(pairs) == count
    assert all(low < high for low, high in pairs)
    met = {frozenset((names[low], names[high])) for low, high in pairs if names[low] != names[high]}
    assert len(met) == hosts * (hosts - 1) // 2  # each machine with each
