"""Composed recall rows: what counts as a target is what the row said before."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import compose  # noqa: E402

PREFIX, LINK, STOP, QUESTION = [20, 21], [22], [23], [24, 25]
WORDS = {"adjectives": range(100, 200), "nouns": range(200, 300), "value_words": range(300, 400)}
PIECES = {"prefix": PREFIX, "link": LINK, "stop": STOP, "full_stop": [26], "space": [27], "digits": [list(range(30, 40))[i] for i in range(10)],
          "digit_count": 5, "question": QUESTION, "mark": [28], "intro": [29], "vocabulary": 1000, "line_end": [40]} | {
    k: [[i] for i in v] for k, v in WORDS.items()}


@pytest.fixture
def composer():
    filler = np.resize(np.array([50, 51, 52, 53, 40], dtype=np.uint16), 50_000)
    return compose.Composer(PIECES, {s: filler for s in ("prose", "code", "shell", "json")})


def facts(row: list[int]) -> list[tuple[int, tuple, tuple]]:
    """(position of the value, key, value) of every sentence that states a code."""
    out = []
    for i in range(len(row) - 11):
        if row[i : i + 2] == PREFIX and row[i + 4] == LINK[0]:
            value = []
            for t in row[i + 5 : i + 12]:
                if t in (STOP[0], 26):
                    break
                value.append(t)
            out.append((i + 5, tuple(row[i + 2 : i + 4]), tuple(value)))
    return out


@pytest.mark.parametrize("length", [257, 1025, 4097])
def test_targets_repeat_a_fact(composer, length):
    asked = words = 0
    for seed in range(40):
        ids, weight = np.zeros(length, np.int32), np.zeros(length, np.float32)
        composer._recall(np.random.default_rng(seed), ids, weight)
        known = {}
        for at, key, value in facts(ids.tolist()):
            if weight[at] == 1 and at + 7 < length:
                assert known[key] == value and (weight[at : at + len(value)] == 1).all()
                asked, words = asked + 1, words + (len(value) == 2)
            known.setdefault(key, value)
        assert ids[0] == compose.BOS
    assert asked > 40 and words > asked / 2


def test_far_facts_are_asked_for(composer):
    """A tenth of the first questions at least is for a fact of the first tenth of a long row, most of them named once."""
    far = once = 0
    for seed in range(60):
        ids, weight = np.zeros(4097, np.int32), np.zeros(4097, np.float32)
        composer._recall(np.random.default_rng(seed), ids, weight)
        stated = facts(ids.tolist())
        at, key, _ = next(f for f in stated if weight[f[0]] == 1)
        mentions = [a for a, k, _ in stated if k == key and a < at]
        far += mentions[0] < 410 < at - 1000
        once += len(mentions) == 1
    assert far >= 6 and once >= 50


def test_a_row_may_hold_two_documents(composer):
    starts = set()
    for seed in range(20):
        ids, weight = np.zeros(4096, np.int32), np.zeros(4096, np.float32)
        composer.recall(np.random.default_rng(seed), ids, weight)
        starts.add(bool(ids[2048] == compose.BOS))
    assert starts == {False, True}
