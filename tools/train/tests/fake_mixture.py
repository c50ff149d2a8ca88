"""Stand-in for dataset.Mixture in tests: repeated spans, nothing to load."""

import numpy as np

CLASSES = ("code", "prose", "tool", "recall", "shell", "json", "chat", "arith", "induction")


class FakeMixture:
    def __init__(self, data_dir, generation, seed):
        self.seed = seed

    def batch(self, rows, length, weights, step):
        rng = np.random.default_rng((self.seed, step))
        span = rng.integers(20, 500, (rows, 64))
        ids = np.tile(span, (1, length // 64 + 1))[:, :length + 1].astype(np.int32)
        weight = np.ones((rows, length + 1), np.float32)
        weight[:, :64] = 0.05
        return ids, weight, (np.arange(rows) % len(CLASSES)).astype(np.uint8)

    def heldout(self, name, rows, length):
        ids, weight, _ = self.batch(rows, length, {}, 10**6 + CLASSES.index(name))
        return ids, weight, np.full(rows, CLASSES.index(name), np.uint8)
