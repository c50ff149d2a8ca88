"""The loader: batches of packed rows from the files that pack.py wrote. Needs numpy only.

    mix = Mixture("build/train/data", "v41", seed=1)
    ids, weight, class_id = mix.batch(32, 2048, {"prose": 3, "code": 3, "recall": 2}, step=17)

File layout: `<class>.<split>.xz` for natural text and `<task>.<generation>.<split>.xz` for synthetic documents, each an
xz-compressed npz of `ids` (uint16), `offsets` (int64, documents + 1) and, synthetic only, `kinds` (uint8, 1 = target).
"""

from __future__ import annotations

import io
import json
import lzma
import pathlib

import numpy as np

from compose import Composer

BOS, EOS = 0, 1
NATURAL = ("prose", "code", "shell", "json")
SYNTHETIC = ("chat", "tool", "arith")
COMPOSED = ("recall", "induction")
CLASSES = NATURAL + SYNTHETIC + COMPOSED
CONTEXT_WEIGHT = 0.1  # loss weight of synthetic text that the model only reads


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as z:
        return {k: z[k] for k in z.files}


class Mixture:
    """Deterministic random access to training rows: a batch depends only on (seed, step) and the arguments.

    data_dir: folder written by pack.py. generation: "v4" or "v41", which selects the prompt encoding of the synthetic
    classes. Raises FileNotFoundError when a file is missing.
    """

    def __init__(self, data_dir: str | pathlib.Path, generation: str, seed: int) -> None:
        self.seed = seed
        root = pathlib.Path(data_dir)
        self._sets: dict[tuple[str, str], dict[str, np.ndarray]] = {}
        for split in ("train", "heldout"):
            for name in NATURAL:
                self._sets[name, split] = read(root / f"{name}.{split}.xz")
            for name in SYNTHETIC:
                self._sets[name, split] = read(root / f"{name}.{generation}.{split}.xz")
        pieces = json.loads((root / "pieces.json").read_text())
        self._composers = {split: Composer(pieces, {n: self._sets[n, split]["ids"] for n in NATURAL})
                           for split in ("train", "heldout")}
        self.tokens = {name: len(self._sets[name, "train"]["ids"]) for name in NATURAL + SYNTHETIC}

    def batch(self, rows: int, length: int, weights: dict[str, float], step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns ids int32 [rows, length + 1], loss weight float32 of the same shape, class index uint8 [rows].

        weights: share of rows per class of CLASSES (normalised here). `loss_weight[r, t]` belongs to predicting
        `ids[r, t]`; it is 0 for BOS. Every row starts with BOS.
        """
        unknown = set(weights) - set(CLASSES)
        if unknown:
            raise ValueError(f"unknown classes {sorted(unknown)}: expected some of {CLASSES}")
        rng = np.random.default_rng((self.seed, step))
        names = [c for c in CLASSES if weights.get(c, 0) > 0]
        share = np.array([weights[c] for c in names], dtype=np.float64)
        share /= share.sum()
        # Systematic sampling: every batch holds each class in its share up to one row.
        points = (np.arange(rows) + rng.random()) / rows
        picks = np.searchsorted(np.cumsum(share), points, side="right").clip(max=len(names) - 1)
        return self._rows(rng, [names[p] for p in rng.permutation(picks)], length, "train")

    def heldout(self, name: str, rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of the held-out split of one class, the same on every call."""
        rng = np.random.default_rng((20, CLASSES.index(name)))
        return self._rows(rng, [name] * rows, length, "heldout")

    def _rows(self, rng: np.random.Generator, names: list[str], length: int, split: str):
        ids = np.zeros((len(names), length + 1), dtype=np.int32)
        weight = np.zeros((len(names), length + 1), dtype=np.float32)
        for r, name in enumerate(names):
            if name in NATURAL:
                self._natural(rng, self._sets[name, split], ids[r], weight[r])
            elif name in SYNTHETIC:
                self._synthetic(rng, self._sets[name, split], ids[r], weight[r])
            else:
                getattr(self._composers[split], name)(rng, ids[r], weight[r])
        weight[ids == BOS] = 0
        return ids, weight, np.array([CLASSES.index(n) for n in names], dtype=np.uint8)

    @staticmethod
    def _natural(rng: np.random.Generator, data: dict, ids: np.ndarray, weight: np.ndarray) -> None:
        """Document slices, each after a BOS. A slice begins up to a row before a random token, clamped to its document,
        which gives every token of the class nearly the same chance."""
        at, n, source, offsets = 0, len(ids), data["ids"], data["offsets"]
        while at + 1 < n:
            token = int(rng.integers(len(source)))
            doc = int(np.searchsorted(offsets, token, side="right")) - 1
            start = max(int(offsets[doc]), token - int(rng.integers(n)))
            take = min(n - at - 1, int(offsets[doc + 1]) - start)
            ids[at] = BOS
            ids[at + 1 : at + 1 + take] = source[start : start + take]
            weight[at : at + 1 + take] = 1
            at += 1 + take

    @staticmethod
    def _synthetic(rng: np.random.Generator, data: dict, ids: np.ndarray, weight: np.ndarray) -> None:
        """Whole random documents until the row is full; the last one is cut."""
        at, n, offsets = 0, len(ids), data["offsets"]
        while at < n:
            doc = int(rng.integers(len(offsets) - 1))
            start = int(offsets[doc])
            take = min(n - at, int(offsets[doc + 1]) - start)
            ids[at : at + take] = data["ids"][start : start + take]
            weight[at : at + take] = np.where(data["kinds"][start : start + take] == 1, 1.0, CONTEXT_WEIGHT)
            at += take
