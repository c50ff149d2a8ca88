"""Near-duplicate removal by 13-word shingles."""

from __future__ import annotations

import re
import zlib

import numpy as np

SHINGLE = 13
TABLE_BITS = 29  # 512 MB of flags; about 1 % false hits at 6 M shingles, harmless against a majority vote


class ShingleFilter:
    """Remembers the shingles of everything kept and drops text that mostly repeats them."""

    def __init__(self) -> None:
        self._seen = np.zeros(1 << TABLE_BITS, dtype=np.bool_)
        self._word_hash: dict[str, int] = {}

    def _hash_words(self, words: list[str]) -> np.ndarray:
        cache = self._word_hash
        for w in set(words).difference(cache):
            cache[w] = zlib.crc32(w.encode()) | (zlib.adler32(w.encode()) << 32)
        return np.fromiter((cache[w] for w in words), dtype=np.uint64, count=len(words))

    def _slots(self, words: list[str]) -> np.ndarray:
        if len(words) < SHINGLE:
            return np.empty(0, dtype=np.int64)
        h = self._hash_words(words)
        n = len(h) - SHINGLE + 1
        mixed = np.zeros(n, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for i in range(SHINGLE):
                mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + h[i : i + n]
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return (mixed >> np.uint64(64 - TABLE_BITS)).astype(np.int64)

    def filter(self, text: str, whole: bool) -> str:
        """Returns `text` without the blocks (or as a whole, all or nothing) whose shingles were mostly seen."""
        blocks = [text] if whole else re.split(r"(?<=\n\n)", text)
        out = []
        for block in blocks:
            slots = self._slots(block.split())
            if len(slots) and self._seen[slots].mean() > 0.5:
                continue
            self._seen[slots] = True
            out.append(block)
        return "".join(out)
