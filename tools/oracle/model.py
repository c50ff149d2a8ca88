"""The forward pass of V4.1 and V4 (spec/model.md appendix C) and its sequence state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from attention import LayerCache, Shared
from block import Block, collapse, raw_mix
from checkpoint import Checkpoint
from config import ModelSpec, load_config
from engram import Engram, load_token_map
from numerics import Arithmetic
from rope import frequencies


class Options:
    """Switches shared by all parts of one model.

    index_scores: "fp32" (the project's decision, appendix E) or "bf16" (the published code).
    layout: "row" or "ref", see attention.window_slots.
    variant: "" or one deliberate mistake for negative tests: transposed_comb, no_inverse_rope, table_a, own_pre, no_engram.
    forced_picks: layer -> picks [T, S] that replace the indexer's choice.
    recorder: called with (stage name, tensor) for every intermediate value.
    """

    def __init__(self, spec: ModelSpec, index_scores="fp32", layout="row", variant="", index_hadamard=True):
        self.index_scores, self.layout, self.variant = index_scores, layout, variant
        self.index_hadamard = index_hadamard
        self.plain_softmax = False  # also record attention with one softmax block ("attn.out_plain")
        self.forced_picks: dict[int, torch.Tensor] = {}
        self.recorder = None
        self.table_a = frequencies(spec.rope_dim, spec.rope_theta, None)
        self.table_b = frequencies(spec.rope_dim, spec.compress_rope_theta, spec.rope_scaling)
        if variant == "table_a":
            self.table_b = self.table_a

    def record(self, block, name: str, value: torch.Tensor) -> None:
        if self.recorder is not None:
            self.recorder(f"{block.prefix}.{name}" if block is not None else name, value)


@dataclass
class Sequence:
    """State of one sequence: token ids processed so far, layer caches, and per draft stage the kv of every position."""

    ids: list[int] = field(default_factory=list)
    caches: list[LayerCache] = field(default_factory=list)
    drafts: list[LayerCache] = field(default_factory=list)
    taps: torch.Tensor | None = None  # [T, taps*D] of the last forward call


class Model:
    def __init__(self, ck: Checkpoint, spec: ModelSpec, mapping=None, quantised=True, **switches):
        ck.weight_block = spec.weight_block
        self.spec = spec
        self.ar = Arithmetic(quantised, 32 if spec.v41 else 128)
        self.options = Options(spec, **switches)
        self.embed = ck.get("embed.weight")
        self.head = ck.weight("head", "f32")
        self.norm = ck.get("norm.weight")
        self.hash = Engram(spec, mapping) if spec.engram else None
        self.blocks = [Block(ck, spec, b, self.ar, self.options) for b in spec.layers]
        if not spec.v41:
            self.hc_head = [ck.get(f"hc_head_{part}") for part in ("fn", "base", "scale")]
        self.drafter = None
        if spec.stages and "mtp.0.main_proj.weight" in ck:
            from dspark import Drafter

            self.drafter = Drafter(ck, self)

    @classmethod
    def load(cls, directory: str | Path, quantised=True, **switches) -> "Model":
        ck = Checkpoint.open(directory)
        spec = load_config(directory, set(ck.tensors))
        mapping = load_token_map(directory, spec.vocab) if spec.engram else None
        return cls(ck, spec, mapping, quantised, **switches)

    def new_sequence(self) -> Sequence:
        return Sequence(
            caches=[LayerCache() for _ in self.spec.layers], drafts=[LayerCache() for _ in self.spec.stages]
        )

    def start_stream(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [T] -> (stream [T, 4, D], one-hot pre [T, 4])."""
        x = self.ar.act(self.embed[ids]).unsqueeze(1).repeat(1, self.spec.hc_mult, 1)
        carried = torch.zeros(ids.shape[0], self.spec.hc_mult)
        carried[:, 0] = 1
        return x, carried

    def run_layer(self, layer: int, x, carried, ids: torch.Tensor, seq: Sequence, shared: Shared):
        """One backbone layer on rows at the end of seq.ids (which already holds them). -> (x, carried)."""
        block, rec = self.blocks[layer], self.options.record
        start = len(seq.ids) - ids.shape[0]
        if block.engram is not None and self.options.variant != "no_engram":
            rows = self.hash.rows(block.block.engram, seq.ids, start)
            rec(block.block, "engram.x", x)
            x, gate = block.engram.write(self.ar, x, rows)
            for name, value in (("rows", rows), ("gate", gate), ("out", x)):
                rec(block.block, "engram." + name, value)
        if self.spec.v41 and layer in self.spec.tap_layers:
            self._tap(seq, x)
        positions = torch.arange(start, len(seq.ids))
        x, carried = block.forward(
            x, carried, ids, lambda h: block.attention.forward(h, positions, seq.caches, shared)
        )
        if not self.spec.v41 and layer in self.spec.tap_layers:
            self._tap(seq, x)
        rec(block.block, "out", x)
        rec(block.block, "next_pre", carried)
        return x, carried

    def _tap(self, seq: Sequence, x) -> None:
        tap = self.ar.act(x.double().mean(1).float())
        seq.taps = tap if seq.taps is None else torch.cat((seq.taps, tap), dim=1)

    def merge(self, x, carried):
        """Final collapse of the stream: [T, 4, D] -> h [T, D] before the norm."""
        if self.spec.v41:
            return collapse(self.ar, x, carried)
        fn, base, scale = self.hc_head
        weights = torch.sigmoid(raw_mix(x, fn, self.spec.eps) * scale.double()[0] + base.double()) + self.spec.hc_eps
        return collapse(self.ar, x, weights.float())

    def forward(self, ids, seq: Sequence) -> torch.Tensor:
        """Processes token ids [T] at the next T positions; returns fp32 logits [T, vocab] and leaves taps in seq.taps."""
        ids = torch.as_tensor(ids, dtype=torch.int64)
        seq.ids.extend(ids.tolist())
        seq.taps, shared = None, Shared()
        x, carried = self.start_stream(ids)
        for layer in range(len(self.blocks)):
            x, carried = self.run_layer(layer, x, carried, ids, seq, shared)
        h = self.merge(x, carried)
        hidden = self.ar.rms_norm(h, self.norm, self.spec.eps)
        logits = self.ar.linear(hidden, self.head)
        rec = self.options.record
        for name, value in (("x", x), ("carried", carried), ("h", h), ("hidden", hidden), ("logits", logits)):
            rec(None, "head." + name, value)
        return logits
