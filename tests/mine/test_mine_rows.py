"""Which candidates become negatives: each filter alone, and what it counts."""

from __future__ import annotations

import numpy as np
import pytest

from starbucks_retrieval.data import Passage
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.rows import choose_negatives, near_duplicates, query_generator, word_set

ROWS = np.array([10, 11, 12, 13, 14, 15, -1, -1])
SCORES = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, -np.inf, -np.inf], np.float32)


def chosen(positives=(), lowest=None, seed=1, duplicates=(), **changes):
    files = {"dataset_path": "groups", "run": "bm25.trec", "output_path": "rows.jsonl"}
    arguments = MineArguments(**files, depth=8, **{"num_negatives": 8, "sampling": "top", **changes})
    rng, is_duplicate = query_generator(seed, "q"), lambda row: row in duplicates
    places, dropped = choose_negatives(ROWS, SCORES, np.array(positives, int), lowest, arguments, rng, is_duplicate)
    return ROWS[places].tolist(), {name: count for name, count in dropped.items() if count}


def test_without_filters_all_but_the_filling_is_taken():
    assert chosen() == ([10, 11, 12, 13, 14, 15], {})


def test_a_positive_is_never_taken():
    assert chosen(positives=[11, 14, 99]) == ([10, 12, 13, 15], {"positives": 2})


def test_ranks_are_counted_from_1_without_the_positives():
    assert chosen(range="2:3") == ([11, 12], {"range": 4})
    assert chosen(range="2:3", positives=[10, 12]) == ([13, 14], {"positives": 2, "range": 2})
    assert chosen(range="7:8") == ([], {"range": 6})


def test_margin_keeps_scores_up_to_the_positive_minus_it():
    assert chosen(margin=1.0, lowest=7.0) == ([13, 14, 15], {"margin": 3})
    assert chosen(margin=0.0, lowest=7.0) == ([12, 13, 14, 15], {"margin": 2})
    assert chosen(margin=-1.0, lowest=7.0) == ([11, 12, 13, 14, 15], {"margin": 1})
    assert chosen(margin=1.0, lowest=None)[0] == [10, 11, 12, 13, 14, 15]


def test_ratio_keeps_scores_up_to_a_share_of_the_positive():
    assert chosen(ratio=0.5, lowest=10.0) == ([14, 15], {"ratio": 4})
    # Half of a negative score is a higher one: the share means nothing there.
    assert chosen(ratio=0.5, lowest=-10.0)[0] == [10, 11, 12, 13, 14, 15]
    assert chosen(ratio=0.5, lowest=0.0)[0] == [10, 11, 12, 13, 14, 15]
    assert chosen(ratio=0.5, lowest=None)[0] == [10, 11, 12, 13, 14, 15]


def test_both_limits_hold_together():
    assert chosen(margin=3.0, ratio=0.5, lowest=10.0) == ([14, 15], {"margin": 2, "ratio": 2})


def test_a_duplicate_gives_its_place_to_the_next():
    assert chosen(num_negatives=3, duplicates=[10, 12]) == ([11, 13, 14], {"duplicates": 2})
    taken, dropped = chosen(num_negatives=3, duplicates=[10, 12], sampling="random")
    assert len(taken) == 3 and not {10, 12} & set(taken)
    assert dropped.get("duplicates", 0) <= 2


def test_top_takes_the_best_and_random_any_in_the_order_of_rank():
    assert chosen(num_negatives=2)[0] == [10, 11]
    draws = [chosen(num_negatives=2, sampling="random", seed=seed)[0] for seed in range(40)]
    assert {row for draw in draws for row in draw} == {10, 11, 12, 13, 14, 15}
    assert all(draw == sorted(draw) for draw in draws)
    assert draws == [chosen(num_negatives=2, sampling="random", seed=seed)[0] for seed in range(40)]


def test_random_choices_depend_on_seed_and_query():
    draws = [query_generator(seed, query).permutation(50).tolist() for seed in (0, 1) for query in ("a", "b")]
    assert len({tuple(draw) for draw in draws}) == 4
    assert draws[0] == query_generator(0, "a").permutation(50).tolist()


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("The cat, the mat.", "the CAT the mat", True),
        ("a b c d e f g h i j", "a b c d e f g h i", True),  # 9 of 10
        ("a b c d e f g h i", "a b c d e f g h j", False),  # 8 of 10
        ("a b", "a b c d e f", False),
        ("", "…", True),
        ("", "a", False),
        ("Straße", "STRASSE", True),
    ],
)
def test_near_duplicates_share_nine_tenths_of_their_words(one, other, near):
    a, b = word_set(Passage("1", "A title", one or " ")), word_set(Passage("2", "another", other))
    if not one:
        a = word_set(Passage("1", "", ""))
    assert near_duplicates(a, b, 0.9) is near_duplicates(b, a, 0.9) is near


def test_a_passage_without_text_is_compared_by_its_title():
    assert word_set(Passage("1", "Only title", " ")) == {"only", "title"}
    assert word_set(Passage("1", "Title", "text")) == {"text"}


def test_threshold_1_wants_the_same_words():
    assert near_duplicates(frozenset("ab"), frozenset("ba"), 1.0)
    assert not near_duplicates(frozenset("abcdefghij"), frozenset("abcdefghi"), 1.0)
