"""Attention of both generations: projections, compressors, indexers and the sparse softmax (spec/model.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from config import BlockSpec, ModelSpec
from numerics import F32, Arithmetic, hadamard, product
from rope import rotate

SOFTMAX_BLOCK = 64  # indices per step of the online softmax
ROW_CHUNK = 256  # rows handled at once, only to bound memory


@dataclass
class LayerCache:
    """What one sequence keeps for one layer. Everything is kept by position for ever; a ring or a page pool holds the same."""

    window: torch.Tensor | None = None  # [n, 512] rotated, quantised kv of every position
    rows_kv: torch.Tensor | None = None  # [n, width] fp32 compressor rows (pooling compressors)
    rows_gate: torch.Tensor | None = None
    entries: torch.Tensor | None = None  # [m, 512] compressed entries
    index_rows_kv: torch.Tensor | None = None  # V4: the indexer's own compressor
    index_rows_gate: torch.Tensor | None = None
    keys: torch.Tensor | None = None  # [m, 128] index keys


def append(old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new if old is None else torch.cat((old, new))


@dataclass
class Shared:
    """What layers of one forward call hand to later layers: picks by index owner, the candidate mask (V4.1)."""

    picks: dict[int, torch.Tensor] = field(default_factory=dict)
    candidates: torch.Tensor | None = None


class Pool:
    """A pooling compressor: kv and gate rows per token, softmax-pooled per channel over a group (3.3, 3.5)."""

    def __init__(self, ck, prefix: str, ratio: int, out: int):
        self.ratio, self.out = ratio, out
        self.wkv = ck.weight(prefix + ".wkv", "f32")
        self.wgate = ck.weight(prefix + ".wgate", "f32")
        self.ape = ck.get(prefix + ".ape") if prefix + ".ape" in ck else None
        self.overlap = self.wkv.value.shape[0] == 2 * out

    def rows(self, ar: Arithmetic, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kv, gate = ar.linear(x, self.wkv), ar.linear(x, self.wgate)
        if self.ape is not None:
            gate = gate + self.ape[positions % self.ratio]
        return kv, gate

    def pool(self, kv: torch.Tensor, gate: torch.Tensor, first: int) -> torch.Tensor:
        """Pooled groups first.. of all complete groups in kv, gate [n, width] -> [groups, out] fp32."""
        groups = kv.shape[0] // self.ratio
        kv = kv[: groups * self.ratio].unflatten(0, (groups, self.ratio))
        gate = gate[: groups * self.ratio].unflatten(0, (groups, self.ratio))
        if self.overlap:
            d = self.out
            before_kv = torch.cat((torch.zeros_like(kv[:1]), kv[:-1]))[..., :d]
            before_gate = torch.cat((torch.full_like(gate[:1], -torch.inf), gate[:-1]))[..., :d]
            kv = torch.cat((before_kv, kv[..., d:]), dim=1)
            gate = torch.cat((before_gate, gate[..., d:]), dim=1)
        kv, gate = kv[first:], gate[first:]
        return (torch.softmax(gate.double(), dim=1) * kv.double()).sum(1).to(F32)


def attend(ar, q, pool, slots, sink, scale, block=SOFTMAX_BLOCK) -> torch.Tensor:
    """Sparse attention with a sink (3.1, 3.7).

    q [T, H, 512], pool [N, 512], slots [T, S] row numbers of pool (-1 = skipped) -> [T, H, 512]. The softmax is online over
    blocks of 64 slots: probabilities are rounded to bf16 relative to the running maximum before the PV product, the
    denominator sums them unrounded, and the sink enters the denominator once at the end. A block of S or more slots gives
    the plain softmax (probabilities relative to the final maximum).
    """
    out = []
    for r in range(0, q.shape[0], ROW_CHUNK):
        qc, sc = q[r : r + ROW_CHUNK].float(), slots[r : r + ROW_CHUNK]
        m = torch.full(qc.shape[:2], -1e30, dtype=torch.float64)
        total = torch.zeros(qc.shape[:2], dtype=torch.float64)
        acc = torch.zeros_like(qc, dtype=torch.float64)
        for b in range(0, sc.shape[1], block):
            idx = sc[:, b : b + block]
            kv = pool[idx.clamp_min(0)].float() * (idx >= 0).unsqueeze(-1)
            s = (qc.double() @ kv.double().transpose(1, 2) * scale).to(F32).double()
            s = s.masked_fill((idx < 0).unsqueeze(1), -torch.inf)
            new_m = torch.maximum(m, s.amax(-1))
            rescale = (m - new_m).exp()
            p = (s - new_m.unsqueeze(-1)).exp()
            total = total * rescale + p.sum(-1)
            acc = acc * rescale.unsqueeze(-1) + ar.act(p.to(F32)).double() @ kv.double()
            m = new_m
        total = total + (sink.double() - m).exp()
        out.append(ar.act((acc / total.unsqueeze(-1)).to(F32)))
    return torch.cat(out)


def window_slots(first: int, count: int, window: int, layout: str, v41: bool) -> torch.Tensor:
    """Positions each of `count` rows starting at position `first` sees, [count, width], -1 = empty.

    layout "row": oldest first, empty ones last; `forward` then closes the gap before the compressed entries, so a row's
    softmax blocks depend on its own list alone. layout "ref": as the published code lists them: a prefill shorter than the window has fewer slots, and
    V4.1's decode ring puts the empty slots first.
    """
    pos = torch.arange(first, first + count).unsqueeze(1)
    width = min(count, window) if layout == "ref" and first == 0 else window
    if layout == "ref" and v41 and first > 0:
        slots = pos - window + 1 + torch.arange(width)
        return slots.where(slots >= 0, torch.tensor(-1))
    slots = (pos - window + 1).clamp_min(0) + torch.arange(width)
    return slots.where(slots <= pos, torch.tensor(-1))


def top_entries(scores: torch.Tensor, visible: torch.Tensor, k: int) -> torch.Tensor:
    """Entry numbers of the k best scores per row, ascending; entries not yet visible become -1 (and stand last).

    A tie at the cut goes to the smaller entry number (torch.topk leaves it open).
    """
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)
    picks = order[:, : min(k, scores.shape[1])].sort(-1).values
    return picks.where(picks < visible.unsqueeze(1), torch.tensor(-1))


class Attention:
    """One attention sublayer. Wrong-on-purpose variants (`model.variant`) exist only for negative tests."""

    def __init__(self, ck, spec: ModelSpec, block: BlockSpec, ar: Arithmetic, options):
        self.spec, self.block, self.ar, self.options = spec, block, ar, options
        p = block.prefix + ".attn"
        self.wq_a, self.wq_b = ck.weight(p + ".wq_a"), ck.weight(p + ".wq_b")
        self.wkv, self.wo_b = ck.weight(p + ".wkv"), ck.weight(p + ".wo_b")
        self.wo_a = ck.weight(p + ".wo_a").value.unflatten(0, (spec.o_groups, spec.o_lora))
        self.q_norm, self.kv_norm = ck.get(p + ".q_norm.weight"), ck.get(p + ".kv_norm.weight")
        self.sink = ck.get(p + ".attn_sink")
        if block.owns_kv:
            self.compressor_norm = ck.get(p + ".compressor.norm.weight")
            self.pool = Pool(ck, p + ".compressor", block.ratio, spec.head_dim) if block.ratio > 1 else None
            self.direct = ck.weight(p + ".compressor.wkv") if block.ratio == 1 else None
        if block.owns_index:
            self.index_wq = ck.weight(p + ".indexer.wq_b")
            self.weights_proj = ck.weight(p + ".indexer.weights_proj")
            if spec.v41 and block.owns_kv:
                self.index_wk, self.index_k_norm = ck.weight(p + ".indexer.wk"), ck.get(p + ".indexer.k_norm.weight")
            elif not spec.v41:
                self.index_pool = Pool(ck, p + ".indexer.compressor", block.ratio, spec.index_dim)
                self.index_norm = ck.get(p + ".indexer.compressor.norm.weight")

    def freqs(self):
        return self.options.table_b if self.block.ratio else self.options.table_a

    def quantise_kv(self, kv):
        """Window kv as the cache holds it: V4.1 all dims in blocks of 32, V4 the dims before RoPE in blocks of 64."""
        if self.spec.v41:
            return self.ar.fp8_roundtrip(kv, 32)
        n = self.spec.head_dim - self.spec.rope_dim
        return torch.cat((self.ar.fp8_roundtrip(kv[..., :n], 64), kv[..., n:]), dim=-1)

    def project_kv(self, x, positions):
        """x [T, D] -> rotated, quantised window kv [T, 512]."""
        kv = self.ar.rms_norm(self.ar.linear(x, self.wkv), self.kv_norm, self.spec.eps)
        kv = rotate(kv, positions, self.freqs())
        self.options.record(self.block, "kv_rotated", kv)
        return self.quantise_kv(kv)

    def project_q(self, x, positions):
        """x [T, D] -> (qr [T, q_lora], q [T, H, 512] rotated)."""
        qr = self.ar.rms_norm(self.ar.linear(x, self.wq_a), self.q_norm, self.spec.eps)
        q = self.ar.linear(qr, self.wq_b).unflatten(-1, (self.spec.heads, self.spec.head_dim))
        if not self.spec.v41:
            q = self.ar.rms_norm(q, None, self.spec.eps)
        return qr, rotate(q, positions, self.freqs())

    def compress(self, x, positions, cache: LayerCache):
        """Appends the compressed entries and index keys that complete in these rows (3.3, 3.5)."""
        b, ar, rec = self.block, self.ar, self.options.record
        done = 0 if cache.entries is None else cache.entries.shape[0]
        if b.ratio > 1:
            kv, gate = self.pool.rows(ar, x, positions)
            rec(b, "compress.rows_kv", kv)
            rec(b, "compress.rows_gate", gate)
            cache.rows_kv, cache.rows_gate = append(cache.rows_kv, kv), append(cache.rows_gate, gate)
            pooled = ar.act(self.pool.pool(cache.rows_kv, cache.rows_gate, done))
        else:
            pooled = ar.linear(x, self.direct)
        latent = ar.rms_norm(pooled, self.compressor_norm, self.spec.eps)
        rec(b, "compress.latent", latent)
        at = torch.arange(done, done + latent.shape[0]) * b.ratio
        if b.owns_index:
            keys = self._index_keys(x, positions, latent, at, cache)
            cache.keys = append(cache.keys, keys)
            rec(b, "compress.key", keys)
        entry = rotate(latent, at, self.freqs())
        rec(b, "compress.entry_rotated", entry)
        entry = ar.fp4_e4m3_roundtrip(entry) if self.spec.v41 else self.quantise_kv(entry)
        rec(b, "compress.entry", entry)
        cache.entries = append(cache.entries, entry)

    def _index_keys(self, x, positions, latent, at, cache):
        ar = self.ar
        if self.spec.v41:
            k = ar.rms_norm(ar.linear(latent, self.index_wk), self.index_k_norm, self.spec.eps)
            k = rotate(k, at, self.freqs())
        else:
            kv, gate = self.index_pool.rows(ar, x, positions)
            self.options.record(self.block, "compress.index_rows_kv", kv)
            self.options.record(self.block, "compress.index_rows_gate", gate)
            cache.index_rows_kv, cache.index_rows_gate = append(cache.index_rows_kv, kv), append(cache.index_rows_gate, gate)
            done = 0 if cache.keys is None else cache.keys.shape[0]
            pooled = ar.act(self.index_pool.pool(cache.index_rows_kv, cache.index_rows_gate, done))
            k = rotate(ar.rms_norm(pooled, self.index_norm, self.spec.eps), at, self.freqs())
            k = ar.act(hadamard(k)) if self.options.index_hadamard else k
        self.options.record(self.block, "compress.key_rotated", k)
        return ar.fp4_e8m0_roundtrip(k)

    def index_query(self, qr, x, positions):
        """-> (qi [T, Hi, 128] rotated and quantised, head weights [T, Hi])."""
        ar, s = self.ar, self.spec
        q = ar.linear(qr, self.index_wq).unflatten(-1, (s.index_heads, s.index_dim))
        q = rotate(q, positions, self.freqs())
        if not s.v41 and self.options.index_hadamard:
            q = ar.act(hadamard(q))
        self.options.record(self.block, "index.q_rotated", q)
        w = ar.act(ar.linear(x, self.weights_proj).float() * (s.index_dim**-0.5 * s.index_heads**-0.5))
        return ar.fp4_e8m0_roundtrip(q), w

    def score(self, q, w, keys, visible):
        """[T, m] fp32 scores, -inf where not visible; index_scores "bf16" rounds every step as the published code does."""
        out = torch.empty(q.shape[0], keys.shape[0])
        rounded = self.options.index_scores == "bf16" and self.ar.quantised
        for r in range(0, q.shape[0], ROW_CHUNK):
            rows = slice(r, r + ROW_CHUNK)
            dots = product(q[rows], keys.T)
            if rounded:
                parts = torch.relu(self.ar.act(dots)) * w[rows].unsqueeze(-1)
                out[rows] = parts.float().sum(1).to(w.dtype).float()
            else:  # fp32 sums in a fixed order, so that ties and near-ties are the same everywhere
                blocks = [product(q[rows, :, k : k + 32], keys[:, k : k + 32].T) for k in range(0, self.spec.index_dim, 32)]
                dots = sum(blocks[1:], blocks[0])
                weighted = torch.relu(dots) * w[rows].float().unsqueeze(-1)
                out[rows] = sum((weighted[:, h] for h in range(1, weighted.shape[1])), weighted[:, 0])
        return out.masked_fill(torch.arange(keys.shape[0]) >= visible.unsqueeze(1), -torch.inf)

    def select_candidates(self, scores, visible):
        """Mask [T, m] of the entries inside the best blocks; the newest visible block is always kept (3.5)."""
        size, m = self.spec.candidate_block_size, scores.shape[1]
        blocks = -(-m // size)
        padded = torch.nn.functional.pad(scores, (0, blocks * size - m), value=-torch.inf)
        best = padded.unflatten(1, (blocks, size)).amax(-1)
        newest = (visible - 1).clamp_min(0) // size
        best.scatter_(1, newest.unsqueeze(1), torch.inf)
        order = torch.argsort(best, dim=-1, descending=True, stable=True)[:, : min(self.spec.candidate_blocks, blocks)]
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(1, order, True) & (best > -torch.inf)
        return keep.repeat_interleave(size, 1)[:, :m]

    def select(self, qr, x, positions, keys, shared: Shared):
        """Runs the indexer: publishes the picks [T, <= index_topk] of this layer (and the candidate mask) into `shared`."""
        b, rec = self.block, self.options.record
        visible = (positions + 1) // b.ratio
        q, w = self.index_query(qr, x, positions)
        scores = self.score(q, w, keys, visible)
        rec(b, "index.q", q)
        rec(b, "index.weights", w)
        rec(b, "index.scores", scores)
        if b.candidate_source:
            shared.candidates = self.select_candidates(scores, visible)
            rec(b, "index.candidates", shared.candidates)
        elif b.candidate_reader:
            scores = scores.masked_fill(~shared.candidates, -torch.inf)
        forced = self.options.forced_picks.get(b.index)
        picks = top_entries(scores, visible, self.spec.index_topk) if forced is None else forced
        rec(b, "index.picks", picks)
        shared.picks[b.index] = picks

    def project_out(self, out, positions):
        """Attention output [T, H, 512] -> (rotated back, y [T, D])."""
        ar, s = self.ar, self.spec
        if self.options.variant != "no_inverse_rope":
            out = rotate(out, positions, self.freqs(), inverse=True)
        grouped = out.float().reshape(out.shape[0], s.o_groups, -1)
        low = ar.act(product(grouped.transpose(0, 1), self.wo_a.transpose(1, 2)).transpose(0, 1)).flatten(1)
        self.options.record(self.block, "attn.low", low)
        return out, ar.linear(low, self.wo_b)

    def forward(self, x, positions, caches: list[LayerCache], shared: Shared):
        """x [T, D] at consecutive positions -> y [T, D]."""
        b, rec = self.block, self.options.record
        cache = caches[b.index]
        first = int(positions[0])
        qr, q = self.project_q(x, positions)
        kv = self.project_kv(x, positions)
        for name, value in (("x", x), ("qr", qr), ("q", q), ("kv", kv)):
            rec(b, "attn." + name, value)
        cache.window = append(cache.window, kv)
        pool = cache.window
        slots = window_slots(first, x.shape[0], self.spec.window, self.options.layout, self.spec.v41)
        if b.ratio:
            owner = caches[b.kv_owner]
            if b.owns_kv:
                self.compress(x, positions, cache)
            entries = owner.entries
            if b.owns_index:
                self.select(qr, x, positions, owner.keys, shared)
            picks = self._picks(positions, entries.shape[0], shared)
            slots = torch.cat((slots, picks.where(picks < 0, picks + pool.shape[0])), dim=1)
            pool = torch.cat((pool, entries))
        if self.options.layout == "row":
            slots = slots.gather(1, (slots < 0).to(torch.uint8).argsort(dim=1, stable=True))
        scale = self.spec.head_dim**-0.5
        out = attend(self.ar, q, pool, slots, self.sink, scale)
        rec(b, "attn.out", out)
        if self.options.plain_softmax:
            rec(b, "attn.out_plain", attend(self.ar, q, pool, slots, self.sink, scale, block=slots.shape[1]))
        turned, y = self.project_out(out, positions)
        rec(b, "attn.out_unrotated", turned)
        rec(b, "attn.y", y)
        return y

    def _picks(self, positions, total, shared):
        if self.block.index_owner >= 0:
            return shared.picks[self.block.index_owner]
        every = torch.arange(total).expand(positions.shape[0], total)  # ratio 128: no indexer, all visible entries
        return every.where(every < ((positions + 1) // self.block.ratio).unsqueeze(1), torch.tensor(-1))
