"""Backbone of both generations for training: [B, T] token ids -> collapsed hidden states, index loss, drafter taps.

Vectorised over whole sequences (no caches): window attention by 128-row blocks, compressed attention dense with masks.
T must be a multiple of 128. Follows spec/model.md sections 2, 3, 5, 7 and appendix C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

import attention as att
import stages
from config import Spec
from params import Store, engram_rows
from quant import hadamard
from sinkhorn import sinkhorn


def rope_frequencies(spec: Spec, compressed: bool) -> torch.Tensor:
    """float32 [rope_dim/2]: table A (plain) or table B (compress theta with YaRN), spec 3.2."""
    half, dim = spec.rope_dim // 2, spec.rope_dim
    base = spec.compress_theta if compressed else spec.rope_theta
    f = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if not compressed:
        return f
    s = spec.rope_scaling
    at = lambda n: dim * math.log(s["original_max_position_embeddings"] / (2 * math.pi * n)) / (2 * math.log(base))
    low, high = max(math.floor(at(s["beta_fast"])), 0), min(math.ceil(at(s["beta_slow"])), dim - 1)
    ramp = ((torch.arange(half, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return f / s["factor"] * ramp + f * (1 - ramp)


@dataclass
class Context:
    """Per-forward state: positions, tables, and what owner layers publish to later layers."""
    b: int
    t: int
    ids: torch.Tensor  # int64 [N]
    quant: bool
    select: bool
    index_loss: bool
    wmask: torch.Tensor  # [1, T, 256]
    entries: dict = field(default_factory=dict)  # owner -> [B, T/r, 512]
    keys: dict = field(default_factory=dict)  # owner -> [B, T/r, 128]
    visible: dict = field(default_factory=dict)  # ratio -> bool [1, T, T/r]
    scores: dict = field(default_factory=dict)  # index layer -> float32 [B, T, T/r]
    picks: dict = field(default_factory=dict)  # index layer -> bool mask
    candidates: torch.Tensor | None = None
    mass: dict = field(default_factory=dict)  # index layer -> bf16 attention mass of every layer that uses its picks
    taps: list = field(default_factory=list)
    counts: dict = field(default_factory=dict)  # layer -> expert counts
    rows: dict = field(default_factory=dict)  # engram layer -> table rows [N, columns]


@dataclass
class Output:
    hidden: torch.Tensor  # bf16 [N, D], before the final norm
    taps: torch.Tensor  # bf16 [N, taps*D]
    index_loss: torch.Tensor | None
    counts: dict


class Model:
    """Holds the parameter store and everything that is not trained by gradient (router biases, hash table, Engram map)."""

    def __init__(self, spec: Spec, device="cpu", seed: int = 1, token_map=None):
        self.spec, self.device = spec, torch.device(device)
        self.store = Store(spec, self.device, seed)
        self.w = self.store.weights
        self.quant = True
        names = [f"layers.{i}" for i in range(spec.hash_layers, spec.layers)] + [f"mtp.{i}" for i in range(spec.draft_stages)]
        self.bias = {n: torch.zeros(spec.draft_experts if n[0] == "m" else spec.experts, device=self.device) for n in names}
        self.tid2eid = {}
        for layer in range(spec.hash_layers):
            self.set_hash_table(layer, balanced_hash(spec, layer))
        self.hadamard = None if spec.v41 else hadamard(spec.index_dim).to(self.device)
        self._tables: dict = {}
        if spec.engram_layers:
            self._init_engram(token_map)

    def set_hash_table(self, layer: int, table: torch.Tensor) -> None:
        """table int64 [vocab, top_k]."""
        self.tid2eid[layer] = table.to(self.device)

    def _init_engram(self, token_map) -> None:
        spec = self.spec
        count = spec.engram_compressed_vocab
        if token_map is None and count != spec.vocab:
            self.token_map = None  # enough for exporting; hashing then fails with a message
            return
        ids = np.arange(spec.vocab) if token_map is None else np.asarray(token_map)
        if len(ids) != spec.vocab or ids.max() >= count:
            raise ValueError(f"token map: {len(ids)} entries up to {ids.max()}, want {spec.vocab} below {count}")
        self.token_map = torch.as_tensor(ids, dtype=torch.int64, device=self.device)
        self.engram_hash = {}
        for layer, orders in zip(spec.engram_layers, engram_rows(spec)):
            bound = ((2**63 - 1) // count) // 2
            mult = np.random.default_rng(10007 * layer).integers(0, bound, spec.engram_ngram, dtype=np.int64) * 2 + 1
            flat = [p for o in orders for p in o]
            offsets = np.concatenate([[0], np.cumsum(flat)[:-1]])
            as_t = lambda a: torch.as_tensor(np.asarray(a, dtype=np.int64), device=self.device)
            self.engram_hash[layer] = (as_t(mult), as_t(orders), as_t(offsets))

    def engram_row_ids(self, ids: torch.Tensor, layer: int) -> torch.Tensor:
        """ids int64 [B, T] -> table rows int64 [B*T, orders*heads] (spec 7.1)."""
        if self.token_map is None:
            raise ValueError("Engram needs the tokenizer's compressed token map")
        mult, primes, offsets = self.engram_hash[layer]
        c = self.token_map[ids]
        pad = int(self.token_map[self.spec.engram_pad])
        r, columns = c * mult[0], []
        for s in range(1, self.spec.engram_ngram):
            r = r ^ (F.pad(c, (s, 0), value=pad)[:, :c.shape[1]] * mult[s])
            columns.append(r.unsqueeze(-1) % primes[s - 1])
        return (torch.cat(columns, -1) + offsets).flatten(0, 1)

    def angles(self, compressed: bool, t: int, b: int, step: int = 1, offset: int = 0):
        """cos, sin float32 [b*(t/step), 32] for positions offset, offset+step, ... of each row."""
        key = (compressed, t, b, step, offset)
        if key not in self._tables:
            pos = torch.arange(0, t, step, dtype=torch.float32) + offset
            a = (pos[:, None] * rope_frequencies(self.spec, compressed)[None, :])
            self._tables[key] = tuple(f(a.double()).float().repeat(b, 1).to(self.device) for f in (torch.cos, torch.sin))
        return self._tables[key]

    # ---- layers -------------------------------------------------------------------------------------------------

    def context(self, ids: torch.Tensor, select: bool = False, index_loss: bool = False) -> Context:
        b, t = ids.shape
        if t % self.spec.window:
            raise ValueError(f"sequence length {t} is not a multiple of {self.spec.window}")
        c = Context(b, t, ids.flatten().long(), self.quant, select, index_loss,
                    att.window_mask(t, self.spec.window, self.device).unsqueeze(0))
        for r in sorted(set(self.spec.ratios) - {0}):
            pos = torch.arange(t, device=self.device)[:, None]
            c.visible[r] = (torch.arange(t // r, device=self.device)[None, :] < (pos + 1) // r).unsqueeze(0)
        for layer in self.spec.engram_layers:
            c.rows[layer] = self.engram_row_ids(ids.long(), layer)
        return c

    def start(self, c: Context):
        """Embedded stream [N,4,D] and the first `pre` (one-hot for V4.1, None for V4)."""
        h = F.embedding(c.ids, self.w["embed.weight"])
        return self.spread(h)

    def spread(self, h: torch.Tensor):
        x = h.unsqueeze(1).expand(-1, self.spec.hc, -1).contiguous()
        pre = None
        if self.spec.v41:
            pre = torch.zeros(h.shape[0], self.spec.hc, device=self.device)
            pre[:, 0] = 1
        return x, pre

    def mixed(self, prefix: str, x, pre, norm: str):
        s, w = self.spec, self.w
        inp, own, post, comb = stages.mix(x, pre, w[f"{prefix}_fn"], w[f"{prefix}_base"], w[f"{prefix}_scale"], w[norm], s.eps, s.hc_eps)
        return inp, (own if s.v41 else None), post, sinkhorn(comb, s.hc_iters, s.hc_eps)

    def feed_forward(self, prefix: str, x, ids, counts: dict, experts: int, top_k: int):
        s, w, p = self.spec, self.w, f"{prefix}.ffn"
        layer = int(prefix.split(".")[1])
        hashed = prefix.startswith("layers.") and layer < s.hash_layers
        forced = F.one_hot(self.tid2eid[layer][ids], experts).sum(1).bool() if hashed else None
        common = (experts, top_k, s.route_scale, s.clamp, s.block, self.quant)
        if top_k == 1:
            y, n = stages.moe_top1(x, w[f"{p}.gate.weight"], self.bias[prefix], w[f"{p}.w13"], w[f"{p}.w2"], experts, *common[2:])
        else:
            y, n = stages.moe(x, w[f"{p}.gate.weight"], self.bias.get(prefix), forced, w[f"{p}.w13"], w[f"{p}.w2"], *common)
        if not hashed:
            counts[prefix] = n
        return y

    def qkv(self, a: str, x, cos, sin):
        s, w = self.spec, self.w
        return stages.project_qkv(x, w[f"{a}.wq_a.weight"], w[f"{a}.q_norm.weight"], w[f"{a}.wq_b.weight"], w[f"{a}.wkv.weight"],
                                  w[f"{a}.kv_norm.weight"], cos, sin, s.heads, s.v41, s.block, s.eps, self.quant)

    def output(self, a: str, o, cos, sin):
        s, w = self.spec, self.w
        return stages.project_out(o, w[f"{a}.wo_a.weight"], w[f"{a}.wo_b.weight"], cos, sin, s.o_groups, s.block, self.quant)

    def attention(self, layer: int, x, c: Context):
        s, w, a = self.spec, self.w, f"layers.{layer}.attn"
        ratio, scale = s.ratios[layer], s.head_dim**-0.5
        cos, sin = self.angles(ratio > 0, c.t, c.b)
        q, kv, qr = self.qkv(a, x, cos, sin)
        kw = att.window_blocks(kv, s.window)
        if ratio == 0:
            o, _ = att.attend(q, kw, None, w[f"{a}.attn_sink"], c.wmask, None, c.b, scale)
            return self.output(a, o, cos, sin)
        owner, index = s.kv_owner(layer), s.index_owner(layer)
        if owner == layer:
            self.compress(layer, x, c)
        visible = c.visible[ratio]
        if index == layer:
            self.index(layer, x, qr, cos, sin, c)
        mask = c.picks.get(index, visible)
        want = c.index_loss and index >= 0
        o, mass = att.attend(q, kw, c.entries[owner], w[f"{a}.attn_sink"], c.wmask, mask, c.b, scale, want)
        if want:
            c.mass[index] = c.mass[index] + mass if index in c.mass else mass
        return self.output(a, o, cos, sin)

    def compress(self, layer: int, x, c: Context) -> None:
        s, w, a = self.spec, self.w, f"layers.{layer}.attn"
        r = s.ratios[layer]
        cos, sin = self.angles(True, c.t, c.b, r)
        g = lambda name: w.get(f"{a}.{name}.weight")
        if s.v41:
            entry, key = stages.compress_v41(x, g("compressor.wkv"), g("compressor.wgate"), g("compressor.norm"), g("indexer.wk"),
                                             g("indexer.k_norm"), cos, sin, r, s.eps, self.quant)
        else:
            first = (torch.arange(c.b * c.t // r, device=self.device) % (c.t // r)) == 0
            part = lambda p: (g(f"{p}.wkv"), g(f"{p}.wgate"), w[f"{a}.{p}.ape"], g(f"{p}.norm"), cos, sin, first)
            entry = stages.compress_v4(x, *part("compressor"), None, r, s.eps, False, self.quant)
            key = None
            if r == 4:
                key = stages.compress_v4(x.detach(), *part("indexer.compressor"), self.hadamard, r, s.eps, True, self.quant)
        c.entries[layer] = entry.view(c.b, c.t // r, -1)
        if key is not None:
            c.keys[layer] = key.view(c.b, c.t // r, -1)

    def index(self, layer: int, x, qr, cos, sin, c: Context) -> None:
        s, w, a = self.spec, self.w, f"layers.{layer}.attn.indexer"
        visible = c.visible[s.ratios[layer]]
        if not (c.select or c.index_loss):
            return
        qi, hw = stages.index_query(qr.detach(), x.detach(), w[f"{a}.wq_b.weight"], w[f"{a}.weights_proj.weight"], cos, sin,
                                    self.hadamard, s.index_heads, s.block, self.quant)
        scores = att.index_scores(qi, c.keys[s.kv_owner(layer)], hw)
        c.scores[layer] = scores
        if not c.select:
            return
        mask = visible
        if c.candidates is not None and layer > s.candidate_source:
            mask = c.candidates
        c.picks[layer] = att.select_top(scores, mask, s.index_topk)
        if layer == s.candidate_source:
            c.candidates = att.candidate_blocks(scores, visible, s.candidate_blocks, s.candidate_block)

    def layer(self, layer: int, x, pre, c: Context):
        """One block: stream [N,4,D] and incoming `pre` -> the same after the layer (spec 2.3, 2.4)."""
        s, w, p = self.spec, self.w, f"layers.{layer}"
        if layer in s.engram_layers:
            rows = F.embedding(c.rows[layer], w[f"{p}.engram.embed.weight"]).flatten(1)
            x = stages.engram_write(x, rows, w[f"{p}.engram.wkv.weight"], w[f"{p}.engram.q_weight"], w[f"{p}.engram.k_weight"], s.block, self.quant)
        if s.v41 and layer in s.draft_taps:
            c.taps.append(stages.tap_mean(x))
        inp, pre, post, comb = self.mixed(f"{p}.hc_attn", x, pre, f"{p}.attn_norm.weight")
        x = stages.expand(self.attention(layer, inp, c), x, post, comb)
        inp, pre, post, comb = self.mixed(f"{p}.hc_ffn", x, pre, f"{p}.ffn_norm.weight")
        x = stages.expand(self.feed_forward(p, inp, c.ids, c.counts, s.experts, s.top_k), x, post, comb)
        if not s.v41 and layer in s.draft_taps:
            c.taps.append(stages.tap_mean(x))
        return x, pre

    def merge(self, x, pre, prefix: str = ""):
        """Collapses the last stream to [N, D] (before the final norm)."""
        s, w = self.spec, self.w
        if s.v41:
            return stages.collapse(x, pre)
        return stages.head_merge(x, w[f"{prefix}hc_head_fn"], w[f"{prefix}hc_head_base"], w[f"{prefix}hc_head_scale"], s.eps, s.hc_eps)

    def forward(self, ids: torch.Tensor, select: bool = False, index_loss: bool = False, index_weight=None) -> Output:
        """ids int [B, T]. select: index top-k (and candidate) masks on, else every visible entry is attended.
        index_weight: float32 [B, T], what a token's divergence counts in the index loss; None: all the same."""
        c = self.context(ids, select, index_loss)
        x, pre = self.start(c)
        for layer in range(self.spec.layers):
            x, pre = self.layer(layer, x, pre, c)
        loss = self.index_kl(c, index_weight) if index_loss else None
        return Output(self.merge(x, pre), torch.cat(c.taps, -1), loss, c.counts)

    def index_kl(self, c: Context, weight=None) -> torch.Tensor:
        """Sum over indexers of KL(attention mass of the layers that use its picks || softmax of its scores)."""
        s, total = self.spec, 0.0
        for layer, scores in c.scores.items():
            mass = c.mass[layer]
            mask = c.picks[layer] if c.select else c.visible[s.ratios[layer]]
            if layer == s.candidate_source:
                # The candidate blocks must also hold what the re-indexing layers will want.
                later = [l for l in c.mass if l > layer]
                mass = sum((c.mass[l] for l in later), mass)
                if c.select:
                    for l in later:
                        mask = mask | c.picks[l]
            total = total + att.index_kl(scores, mass.detach(), mask.expand(scores.shape), weight)
        return total

    def logits(self, hidden: torch.Tensor, norm: str = "norm.weight") -> torch.Tensor:
        """float32 [N, V], as the reference: bf16 values promoted, float32 product (spec 2.5)."""
        return stages.rms(hidden, self.w[norm], self.spec.eps).float() @ self.w["head.weight"].float().t()

    def state(self) -> dict:
        """Everything an export or a resumed run needs, by name."""
        return {"masters": {p.name: self.store.master(p.name) for p in self.store.params}, "bias": self.bias, "tid2eid": self.tid2eid}

    @torch.no_grad()
    def load_state(self, state: dict) -> None:
        for name, value in state["masters"].items():
            self.store.master(name).copy_(value)
        for name, value in state["bias"].items():
            self.bias[name].copy_(value)
        for layer, table in state["tid2eid"].items():
            self.set_hash_table(layer, table)
        self.store.refresh(self.quant)

    @torch.no_grad()
    def balance(self, counts: dict, rate: float = 1e-3) -> None:
        """Bias step towards equal expert load (spec 9.3); counts may be summed over micro-batches."""
        for name, n in counts.items():
            self.bias[name] += rate * torch.sign(n.mean() - n)


def balanced_hash(spec: Spec, layer: int) -> torch.Tensor:
    """Seeded expert table int64 [vocab, top_k]: distinct experts per token, every expert equally often per column."""
    rng = np.random.default_rng(777 + layer)
    first = rng.permutation(np.arange(spec.vocab) % spec.experts)
    columns = [first]
    for k in range(1, spec.top_k):
        columns.append((first + 1 + (rng.permutation(spec.vocab) % (spec.experts - 1)) if k == 1 else columns[-1] + 1) % spec.experts)
    return torch.as_tensor(np.stack(columns, 1), dtype=torch.int64)
