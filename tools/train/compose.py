"""Rows composed on the fly from token ids: key-value recall in filler text, and plain repetition.

Both have endless variety and cost no storage. Most recall rows name every fact once and ask for several at the end, one
of the first facts or any of them as often as one at a log-uniform distance: far facts among many are what a model learns
last. The others repeat facts all through the row, at distances between 64 tokens and the row length.
"""

from __future__ import annotations

import numpy as np

BOS, EOS, USER, ASSISTANT, END_THINK, FIRST_BYTE = 0, 1, 4, 5, 7, 20
FILLER_WEIGHT = 0.05
MAX_FACTS = 90
ONCE = 0.6  # share of recall documents that name every fact once
HALVES = 0.25  # share of long recall rows that hold two documents
EARLY = 0.1  # of a document: where the first facts stand that are asked on purpose
DIGIT_SHARES, DIGIT_CHANCE = (0.0, 0.5, 1.0), (0.68, 0.16, 0.16)  # values of digits are learnt long before those of words


class Composer:
    """pieces: pack.py's token ids of the fixed strings and word lists. filler: natural token streams by class."""

    def __init__(self, pieces: dict, filler: dict[str, np.ndarray]) -> None:
        a = lambda x: np.array(x, dtype=np.int32)  # noqa: E731
        self.p = {k: a(pieces[k]) for k in ("prefix", "link", "stop", "full_stop", "space", "digits", "question", "mark", "intro")}
        self.words = {k: [a(w) for w in pieces[k]] for k in ("adjectives", "nouns", "value_words")}
        self.digit_count = pieces["digit_count"]
        self.filler = filler
        self.vocabulary = pieces["vocabulary"]
        ends_line = np.zeros(1 << 16, dtype=bool)
        ends_line[pieces["line_end"]] = True
        self.ends_line = ends_line
        self.streams = sorted(filler)
        self.chance = np.array([{"prose": 0.5, "code": 0.25, "shell": 0.15, "json": 0.1}[s] for s in self.streams])

    def _facts(self, rng: np.random.Generator, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(key ids, value ids) pairs of digits or words or both; no adjective or noun twice, no value word while the list lasts."""
        adjectives = rng.permutation(len(self.words["adjectives"]))[:count]
        nouns = rng.permutation(len(self.words["nouns"]))[:count]
        values = np.concatenate([rng.permutation(len(self.words["value_words"])) for _ in range(1 + 2 * count // len(self.words["value_words"]))])
        digit_share = rng.choice(DIGIT_SHARES, p=DIGIT_CHANCE)
        out = []
        for i in range(count):
            key = np.concatenate((self.words["adjectives"][adjectives[i]], self.words["nouns"][nouns[i]]))
            if rng.random() < digit_share:
                value = np.concatenate((self.p["space"], self.p["digits"][rng.integers(0, 10, self.digit_count)]))
            else:
                v = [self.words["value_words"][values[2 * i + k]] for k in (0, 1)]
                value = np.concatenate(v)
            out.append((key, value))
        return out

    def _filler(self, rng: np.random.Generator, length: int) -> np.ndarray:
        """A stretch of one natural stream that begins after a line end."""
        stream = self.filler[self.streams[rng.choice(len(self.streams), p=self.chance)]]
        start = int(rng.integers(max(1, len(stream) - length - 4000)))
        ends = np.flatnonzero(self.ends_line[stream[start : start + 2000]])
        start += int(ends[0]) + 1 if len(ends) else 0
        text = stream[start : start + length].astype(np.int32)
        return np.where(text == EOS, self.p["stop"][-1], text)

    def recall(self, rng: np.random.Generator, ids: np.ndarray, weight: np.ndarray) -> None:
        """Fills one row with one document or, sometimes, two of half the length."""
        half = len(ids) // 2
        if half >= 1024 and rng.random() < HALVES:
            self._recall(rng, ids[:half], weight[:half])
            self._recall(rng, ids[half:], weight[half:])
        else:
            self._recall(rng, ids, weight)

    def _recall(self, rng: np.random.Generator, ids: np.ndarray, weight: np.ndarray) -> None:
        """One document: BOS, filler with facts and repeated facts, then questions; raw text or chat turns."""
        n, p = len(ids), self.p
        chat, once = rng.random() < 0.5, rng.random() < ONCE
        high = max(6, min(MAX_FACTS, n // 40))
        low = max(4, min(15, n // 100)) if once else 4
        facts = self._facts(rng, int(np.exp(rng.uniform(np.log(low), np.log(high + 1)))))
        count = len(facts)
        asked_end = 2 if n < 1024 else int(rng.integers(3, 9)) if not once else min(count, int(rng.integers(3, 6 + n // (400 if chat else 200))))
        repeats = 0 if once else int(rng.integers(0, max(2, n // 90)))
        longest = max(len(k) + len(v) for k, v in facts)
        line = len(p["prefix"]) + len(p["link"]) + len(p["stop"]) + longest
        turn = line + len(p["question"]) + longest + 8 if chat else line
        head = np.concatenate(([BOS, USER], p["intro"])) if chat else np.array([BOS])
        room = n - len(head) - asked_end * turn - count * line
        repeats = max(0, min(repeats, (room - 32) // (2 * line)))
        filler = self._filler(rng, max(0, room - repeats * line))
        # The question begins a line, as it does in use.
        filler = filler[: 1 + max(np.flatnonzero(self.ends_line[filler]), default=len(filler) - 1)]
        # Insert at line ends where there are enough of them, anywhere otherwise.
        total = count + repeats
        cuts = np.flatnonzero(self.ends_line[filler[:-1]]) + 1 if len(filler) else np.empty(0, dtype=np.int64)
        if len(cuts) < 3:
            cuts = np.arange(len(filler) + 1)
        cuts = np.sort(rng.choice(cuts, total, replace=len(cuts) < total))
        # The first fact comes first; every later slot is a new fact or a repeat of one seen before.
        is_repeat = np.zeros(total, dtype=bool)
        is_repeat[1 + rng.permutation(total - 1)[:repeats]] = True

        self._at, last, first, known = 0, np.full(count, -1), np.full(count, -1), 0

        def put(piece, w: float) -> None:
            piece = piece[: n - self._at]
            ids[self._at : self._at + len(piece)] = piece
            weight[self._at : self._at + len(piece)] = w
            self._at += len(piece)

        def pick(fresh: bool) -> int:
            way = rng.random()
            if fresh and way < 0.6:
                unused = np.flatnonzero(used_end[:known] == 0)
                early = unused[first[unused] < EARLY * n] if way < 0.3 else unused
                if len(early) or len(unused):
                    return int(rng.choice(early if len(early) else unused[:1]))
            distance = np.exp(rng.uniform(np.log(64), np.log(max(65, self._at))))
            gap = np.abs(np.log(np.maximum(1, self._at - last[:known])) - np.log(distance))
            if fresh:
                gap = gap + 100.0 * used_end[:known]
            return int(np.argmin(gap))

        def fact(i: int, value_weight: float, stop) -> None:
            put(p["prefix"], FILLER_WEIGHT)
            put(facts[i][0], FILLER_WEIGHT)
            put(p["link"], FILLER_WEIGHT)
            put(facts[i][1], value_weight)
            put(stop, value_weight)

        put(head, 0.0)
        start = 0
        for slot in range(total):
            put(filler[start : cuts[slot]], FILLER_WEIGHT)
            start = cuts[slot]
            if is_repeat[slot]:
                i = pick(False)
                last[i] = self._at
                fact(i, 1.0, p["stop"])
            else:
                last[known] = first[known] = self._at
                fact(known, 0.0, p["stop"])
                known += 1
        put(filler[start:], FILLER_WEIGHT)

        used_end = np.zeros(count)
        for q in range(asked_end):
            i = pick(True)
            used_end[i] = 1
            if not chat:
                fact(i, 1.0, p["stop"])
                continue
            if q:
                put(np.array([USER]), 0.0)
            put(p["question"], 0.0)
            put(facts[i][0], 0.0)
            put(np.concatenate((p["mark"], [ASSISTANT, END_THINK])), 0.0)
            put(p["prefix"], 1.0)
            put(facts[i][0], 1.0)
            put(p["link"], 1.0)
            put(facts[i][1], 1.0)
            put(np.concatenate((p["full_stop"], [EOS])), 1.0)
        # Shorter words than reserved leave a few tokens: another document begins.
        if self._at < n:
            put(np.array([BOS]), 0.0)
            put(self._filler(rng, n - self._at), FILLER_WEIGHT)

    def induction(self, rng: np.random.Generator, ids: np.ndarray, weight: np.ndarray) -> None:
        """Fills one row with spans, each later repeated: what follows the first two tokens of a repeat is predictable."""
        n, at = len(ids), 1
        ids[0] = BOS
        spans: list[np.ndarray] = []
        while at < n:
            if spans and rng.random() < 0.5:
                span = spans[int(rng.integers(len(spans)))]
                w = np.ones(len(span), dtype=np.float32)
                w[:2] = 0
            else:
                size = int(np.exp(rng.uniform(np.log(8), np.log(128))))
                span = rng.integers(FIRST_BYTE, self.vocabulary, size).astype(np.int32) if rng.random() < 0.5 else self._filler(rng, size)
                spans.append(span)
                w = np.zeros(len(span), dtype=np.float32)
            take = min(len(span), n - at)
            ids[at : at + take] = span[:take]
            weight[at : at + take] = w[:take]
            at += take
