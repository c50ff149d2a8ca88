"""DSpark block drafter and greedy verification (spec/model.md section 6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attention import append, attend
from block import Block, collapse, raw_mix


@dataclass
class Draft:
    ids: torch.Tensor  # [5] int64
    confidence: torch.Tensor  # [5] fp32, raw logits
    logits: torch.Tensor  # [5, V] with the Markov bias
    base_logits: torch.Tensor  # [5, V] without it
    hidden: torch.Tensor  # [5, D] before the final norm


class Drafter:
    def __init__(self, ck, model):
        spec = model.spec
        self.model, self.spec, self.ar, self.options = model, spec, model.ar, model.options
        self.main_proj, self.main_norm = ck.weight("mtp.0.main_proj"), ck.get("mtp.0.main_norm.weight")
        self.stages = [Block(ck, spec, s, self.ar, self.options) for s in spec.stages]
        last = spec.stages[-1].prefix
        self.norm = ck.get(last + ".norm.weight")
        if spec.v41:
            self.w1, self.w2 = ck.get(last + ".markov_head.embed.weight"), ck.weight(last + ".markov_head.head", "f32")
        else:
            self.w1 = ck.get(last + ".markov_head.markov_w1.weight")
            self.w2 = ck.weight(last + ".markov_head.markov_w2", "f32")
            self.hc_head = [ck.get(f"{last}.hc_head_{part}") for part in ("fn", "base", "scale")]
        self.confidence = ck.weight(last + ".confidence_head.proj", "f32")

    def main_x(self, taps):
        """taps [T, taps*D] of target-processed rows -> [T, D]."""
        return self.ar.rms_norm(self.ar.linear(taps, self.main_proj), self.main_norm, self.spec.eps)

    def commit(self, seq, taps) -> None:
        """Appends the kv of accepted target positions to every stage; rows follow those committed before."""
        main = self.main_x(taps)
        self.options.record(None, "draft.taps", taps)
        self.options.record(None, "draft.main_x", main)
        for stage, cache in zip(self.stages, seq.drafts):
            start = 0 if cache.window is None else cache.window.shape[0]
            positions = torch.arange(start, start + main.shape[0])
            cache.window = append(cache.window, stage.attention.project_kv(main, positions))

    def draft(self, seq, anchor: int) -> Draft:
        """Greedy block of drafts after `anchor`, which will sit at the position following the last committed one."""
        spec, ar, rec = self.spec, self.ar, self.options.record
        ids = torch.tensor([anchor] + [spec.noise_id] * (spec.draft_block - 1))
        x, carried = self.model.start_stream(ids)
        for stage, cache in zip(self.stages, seq.drafts):
            x, carried = stage.forward(x, carried, ids, lambda h, s=stage, c=cache: self._attention(s, c, h))
            rec(stage.block, "out", x)
            rec(stage.block, "next_pre", carried)
        h = self._merge(x, carried)
        base = ar.linear(ar.rms_norm(h, self.norm, spec.eps), self.model.head)
        rec(None, "draft.hidden", h)
        rec(None, "draft.base_logits", base)
        return self._markov(anchor, h, base)

    def _attention(self, stage: Block, cache, x):
        """Every block row sees the last min(window, committed) positions and all rows of the block."""
        att, rec, b = stage.attention, self.options.record, stage.block
        committed = cache.window.shape[0]
        positions = torch.arange(committed, committed + x.shape[0])
        qr, q = att.project_q(x, positions)
        kv = att.project_kv(x, positions)
        pool = torch.cat((cache.window, kv))
        slots = self._slots(committed, x.shape[0])
        out = attend(self.ar, q, pool, slots, att.sink, self.spec.head_dim**-0.5)
        turned, y = att.project_out(out, positions)
        for name, value in (("x", x), ("q", q), ("kv", kv), ("out", out), ("out_unrotated", turned), ("y", y)):
            rec(b, "attn." + name, value)
        return y

    def _slots(self, committed: int, rows: int):
        window = self.spec.window
        if self.options.layout == "ref":  # ring order: slot i holds the newest position congruent to i
            ring = torch.arange(min(window, committed))
            if committed > window:
                ring = ring + (committed - 1 - ring) // window * window
        else:
            ring = torch.arange(max(0, committed - window), committed)
        return torch.cat((ring, torch.arange(committed, committed + rows))).expand(rows, -1)

    def _merge(self, x, carried):
        if self.spec.v41:
            return collapse(self.ar, x, carried)
        fn, base, scale = self.hc_head
        weights = torch.sigmoid(raw_mix(x, fn, self.spec.eps) * scale.double()[0] + base.double()) + self.spec.hc_eps
        return collapse(self.ar, x, weights.float())

    def _markov(self, anchor: int, h, base) -> Draft:
        ids, confidence, logits, previous = [], [], [], anchor
        for i in range(base.shape[0]):
            embedded = self.ar.act(self.w1[previous])
            row = base[i] + self.ar.linear(embedded.unsqueeze(0), self.w2)[0]
            logits.append(row)
            confidence.append(self.ar.linear(torch.cat((h[i], embedded)).unsqueeze(0), self.confidence)[0, 0])
            previous = int(row.argmax())
            ids.append(previous)
        return Draft(torch.tensor(ids), torch.stack(confidence), torch.stack(logits), base, h)


def accept_greedy(target_ids: list[int], draft_ids: list[int]) -> int:
    """Number of drafts accepted: the longest prefix in which the target's argmax (row i, input anchor first) equals draft i."""
    n = 0
    while n < len(draft_ids) and target_ids[n] == draft_ids[n]:
        n += 1
    return n
