"""What is trained when, as shares of the wall-clock budget."""

from __future__ import annotations

from dataclasses import dataclass

# Rows of each class; natural text, our generators, composed rows (dataset.CLASSES).
_BASE = {"prose": 20, "code": 24, "shell": 8, "json": 5, "chat": 8, "tool": 10, "arith": 10, "recall": 9, "induction": 6}
_LONG = {"prose": 16, "code": 20, "shell": 6, "json": 4, "chat": 8, "tool": 14, "arith": 10, "recall": 20, "induction": 2}
_TUNE = {"prose": 10, "code": 12, "shell": 4, "json": 3, "chat": 9, "tool": 8, "arith": 8, "recall": 50}
_DRAFT = {"prose": 10, "code": 44, "shell": 10, "json": 8, "chat": 8, "tool": 12, "arith": 6, "recall": 2}
# Loss factor per class: classes with few target tokens per row would otherwise hardly count.
CLASS_FACTOR = {"chat": 1.5, "tool": 2.0, "arith": 1.5, "recall": 4.0}


@dataclass(frozen=True)
class Phase:
    name: str
    end: float  # share of the whole budget at which it ends
    length: int
    weights: dict
    select: bool = False  # index top-k on
    index_loss: bool = True
    drafter: bool = False
    long_every: int = 0  # every n-th batch has twice the length


PHASES = (
    Phase("short-1", 0.08, 1024, _BASE, index_loss=False),
    Phase("short-2", 0.34, 1024, _BASE),
    Phase("mid", 0.52, 2048, _BASE),
    Phase("long", 0.58, 4096, _LONG),
    Phase("select", 0.80, 4096, _LONG, select=True, long_every=5),
    Phase("draft", 1.00, 2048, _DRAFT, select=True, index_loss=False, drafter=True),
)
# A short run on a trained model (--init): what selection still misses at length, then the drafter, which has to follow the backbone.
TUNE_PHASES = (
    Phase("select", 0.70, 4096, _TUNE, select=True),
    Phase("draft", 1.00, 2048, _DRAFT, select=True, index_loss=False, drafter=True),
)
TUNE_RATE = 0.25  # of the peak learning rates, for the backbone; falls to nothing
TUNE_DRAFT_RATE = 0.6
BACKBONE_END = 0.80
SELECT_DENSE_EVERY = 4  # in selection phases every 4th step stays dense, so the indexers also learn what they missed
TUNE_DENSE_EVERY = 2


def phase_at(share: float, tune: bool = False) -> Phase:
    phases = TUNE_PHASES if tune else PHASES
    return next((p for p in phases if share < p.end), phases[-1])


def learning_rate(share: float, step: int, drafter_step: int, tune: bool = False) -> float:
    """Factor on all peak learning rates: warm-up by steps, then flat, then linear decay by time."""
    if tune:
        end = TUNE_PHASES[0].end
        if share < end:
            return TUNE_RATE * min(1.0, (step + 1) / 30) * max(0.02, 1.0 - share / end)
        return TUNE_DRAFT_RATE * min(1.0, (drafter_step + 1) / 40) * max(0.02, (1.0 - share) / (1.0 - end))
    if share < BACKBONE_END:
        done, warm = share / BACKBONE_END, min(1.0, (step + 1) / 150)
        flat = 0.45
    else:
        done, warm = (share - BACKBONE_END) / (1 - BACKBONE_END), min(1.0, (drafter_step + 1) / 40)
        flat = 0.4
    return warm * min(1.0, max(0.02, 1.0 - (done - flat) / (1.0 - flat) * 0.98))
