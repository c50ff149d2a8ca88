"""Held-out figures during training: loss per class and teacher-forced exact match of whole target spans."""

from __future__ import annotations

import math

import numpy as np
import torch

import stages
from model import Model

SPAN_CLASSES = ("chat", "tool", "arith", "recall", "induction")


def spans_exact(correct: np.ndarray, weight: np.ndarray) -> tuple[int, int]:
    """correct, weight [rows, length]: number of runs of weight 1 whose tokens are all correct, number of runs."""
    good = total = 0
    for c, w in zip(correct, weight):
        target = np.concatenate(([False], w == 1, [False]))
        edges = np.flatnonzero(target[1:] != target[:-1])
        for start, end in zip(edges[0::2], edges[1::2]):
            total += 1
            good += bool(c[start:end].all())
    return good, total


def evaluate(model: Model, feed, classes, length: int, tokens: int, select: bool, bytes_per_token: dict) -> dict:
    """class -> {nats, bits_per_byte (where bytes per token are known), argmax, exact, spans}, teacher-forced."""
    out = {}
    rows = max(1, tokens // length)
    for name in classes:
        ids, weight, _ = feed.to_device(feed.local.heldout(name, rows, length))
        # Under autograd on purpose: the training graphs are compiled already, inference variants are not.
        hidden = model.forward(ids[:, :-1], select=select).hidden
        nll, best = stages.head_nll(hidden, model.w["norm.weight"], model.w["head.weight"], ids[:, 1:].flatten(), model.spec.eps)
        w = weight[:, 1:]
        full = (w == 1).flatten()
        correct = (best == ids[:, 1:].flatten())
        count = full.sum().clamp_min(1)
        entry = {"nats": (nll.detach() * full).sum().item() / count.item(), "argmax": (correct & full).sum().item() / count.item()}
        if name in bytes_per_token:
            entry["bits_per_byte"] = entry["nats"] / math.log(2) / bytes_per_token[name]
        if name in SPAN_CLASSES:
            good, total = spans_exact(correct.view_as(w).cpu().numpy(), w.cpu().numpy())
            entry |= {"exact": good / max(1, total), "spans": total}
        out[name] = {k: round(v, 4) for k, v in entry.items()}
        del hidden, nll
    return out


def evaluate_drafts(model: Model, feed, drafter, classes, length: int, tokens: int) -> dict:
    """class -> drafter report (accept lengths, losses) on held-out rows with fixed anchors."""
    out = {}
    for name in classes:
        ids, _, _ = feed.to_device(feed.local.heldout(name, max(1, tokens // length), length))
        b, t = ids.shape[0], ids.shape[1] - 1
        base = model.forward(ids[:, :-1], select=True)
        rng = torch.Generator(model.device).manual_seed(5)
        anchors = drafter.draw_anchors(b, t, model.spec.window, model.spec.draft_block, model.device, rng)
        d = drafter.run(model, ids, base.taps.detach(), anchors)
        _, report = drafter.losses(model, d, drafter.target_logits(model, base.hidden.detach(), d))
        out[name] = {k: round(v.item(), 4) for k, v in report.items()}
        del base, d
    return out
