"""Parameters: float32 masters, quantised compute copies, and the list of every tensor of both generations.

Masters of equal shape and kind live stacked in one group tensor, so quantising, averaging gradients and stepping the
optimiser take a few launches instead of one per tensor. The model never sees a master: `refresh` writes the values that
the exported checkpoint will hold (fp8 / fp4 / bf16 rounded) into `compute` tensors, the forward pass uses those as
leaves, and their gradients are handed to the masters unchanged (straight-through estimation).

Names are checkpoint stems (spec/model.md appendix B), except the expert stacks `ffn.w13` and `ffn.w2`, which hold the routed
experts followed by the shared expert and are split on export.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import quant
from config import Spec


@dataclass(frozen=True)
class Param:
    name: str
    shape: tuple[int, ...]
    kind: str  # fp8 | moe13 | moe2 | bf16 | bf16f (bf16 in the file, float32 in use) | f32 | table
    opt: str  # muon | adam
    lr: str  # learning-rate class, see trainer.LEARNING_RATES
    std: float = 0.0  # normal init; 0 with `fill` for constants
    fill: float = 0.0

    @property
    def part(self) -> str:
        return "drafter" if self.name.startswith("mtp.") else "backbone"


def _linear(name: str, rows: int, cols: int, kind: str = "fp8", gain: float = 1.0) -> Param:
    return Param(name, (rows, cols), kind, "muon", "matrix", gain / math.sqrt(cols))


def _norm(name: str, n: int) -> Param:
    return Param(name, (n,), "bf16f", "adam", "vector", 0.0, 1.0)


def _hyper(prefix: str, spec: Spec) -> list[Param]:
    n = (2 + spec.hc) * spec.hc
    return [Param(f"{prefix}_fn", (n, spec.hc * spec.dim), "f32", "adam", "mix", 0.02),
            Param(f"{prefix}_base", (n,), "f32", "adam", "vector"),
            Param(f"{prefix}_scale", (3,), "f32", "adam", "vector", 0.0, 0.1)]


def _head_merge(prefix: str, spec: Spec) -> list[Param]:
    return [Param(f"{prefix}hc_head_fn", (spec.hc, spec.hc * spec.dim), "f32", "adam", "mix", 0.02),
            Param(f"{prefix}hc_head_base", (spec.hc,), "f32", "adam", "vector"),
            Param(f"{prefix}hc_head_scale", (1,), "f32", "adam", "vector", 0.0, 0.1)]


def _block(prefix: str, spec: Spec, experts: int) -> list[Param]:
    d, a, out = spec.dim, f"{prefix}.attn", 0.5
    per_group = spec.heads * spec.head_dim // spec.o_groups
    return [
        *_hyper(f"{prefix}.hc_attn", spec), *_hyper(f"{prefix}.hc_ffn", spec),
        _norm(f"{prefix}.attn_norm.weight", d), _norm(f"{prefix}.ffn_norm.weight", d),
        Param(f"{a}.attn_sink", (spec.heads,), "f32", "adam", "vector"),
        _norm(f"{a}.q_norm.weight", spec.q_lora), _norm(f"{a}.kv_norm.weight", spec.head_dim),
        _linear(f"{a}.wq_a.weight", spec.q_lora, d), _linear(f"{a}.wq_b.weight", spec.heads * spec.head_dim, spec.q_lora),
        _linear(f"{a}.wkv.weight", spec.head_dim, d),
        _linear(f"{a}.wo_a.weight", spec.o_groups * spec.o_lora, per_group),
        _linear(f"{a}.wo_b.weight", d, spec.o_groups * spec.o_lora, gain=out),
        Param(f"{prefix}.ffn.gate.weight", (experts, d), "bf16f", "adam", "gate", 1 / math.sqrt(d)),
        Param(f"{prefix}.ffn.w13", (experts + 1, 2, spec.inter, d), "moe13", "muon", "matrix", 1 / math.sqrt(d)),
        Param(f"{prefix}.ffn.w2", (experts + 1, d, spec.inter), "moe2", "muon", "matrix", out / math.sqrt(spec.inter)),
    ]


def _v4_compressor(prefix: str, spec: Spec, ratio: int, dim: int) -> list[Param]:
    width = dim * (2 if ratio == 4 else 1)
    return [Param(f"{prefix}.ape", (ratio, width), "f32", "adam", "vector", 0.02), _norm(f"{prefix}.norm.weight", dim),
            _linear(f"{prefix}.wkv.weight", width, spec.dim, "bf16f"),
            _linear(f"{prefix}.wgate.weight", width, spec.dim, "bf16f", 0.3)]


def _indexer(prefix: str, spec: Spec) -> list[Param]:
    return [_linear(f"{prefix}.wq_b.weight", spec.index_heads * spec.index_dim, spec.q_lora),
            Param(f"{prefix}.weights_proj.weight", (spec.index_heads, spec.dim), "bf16", "adam", "gate", 1 / math.sqrt(spec.dim))]


def engram_rows(spec: Spec) -> list[list[list[int]]]:
    """Prime table sizes [layer][order][head] (spec 7.1): the next primes from engram_vocab - 1 up, none used twice."""
    def is_prime(n: int) -> bool:
        return n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))

    used: set[int] = set()
    tables = []
    for _ in spec.engram_layers:
        orders = []
        for _ in range(spec.engram_ngram - 1):
            primes, n = [], spec.engram_vocab - 1
            while len(primes) < spec.engram_heads:
                n += 1
                if n not in used and is_prime(n):
                    used.add(n)
                    primes.append(n)
            orders.append(primes)
        tables.append(orders)
    return tables


def list_params(spec: Spec) -> list[Param]:
    """Every trained tensor, in a fixed order. Router biases and tid2eid are state, not parameters (see model.py)."""
    d, v = spec.dim, spec.vocab
    out = [Param("embed.weight", (v, d), "bf16", "adam", "embed", 0.5), Param("head.weight", (v, d), "bf16", "adam", "head", 0.02),
           _norm("norm.weight", d)]
    if not spec.v41:
        out += _head_merge("", spec)
    rows = engram_rows(spec)
    for layer in range(spec.layers):
        p, a = f"layers.{layer}", f"layers.{layer}.attn"
        out += _block(p, spec, spec.experts)
        ratio = spec.ratios[layer]
        if spec.v41:
            if layer in spec.kv_sources:
                kind = "bf16" if ratio == 1 else "bf16f"  # pooled projections run in float32 (spec A.7)
                out += [_linear(f"{a}.compressor.wkv.weight", spec.head_dim, d, kind), _norm(f"{a}.compressor.norm.weight", spec.head_dim)]
                if ratio > 1:
                    out.append(_linear(f"{a}.compressor.wgate.weight", spec.head_dim, d, kind, 0.3))
                out += [_linear(f"{a}.indexer.wk.weight", spec.index_dim, spec.head_dim, "bf16"), _norm(f"{a}.indexer.k_norm.weight", spec.index_dim)]
            if layer in spec.index_sources:
                out += _indexer(f"{a}.indexer", spec)
            if layer in spec.engram_layers:
                table = sum(sum(o) for o in rows[spec.engram_layers.index(layer)])
                columns = (spec.engram_ngram - 1) * spec.engram_heads * spec.engram_dim
                out += [Param(f"{p}.engram.embed.weight", (table, spec.engram_dim), "table", "adam", "embed", 0.5),
                        _linear(f"{p}.engram.wkv.weight", (spec.hc + 1) * d, columns, gain=0.5)]
                out += [Param(f"{p}.engram.{w}", (spec.hc, d), "bf16f", "adam", "vector", 0.0, 1.0) for w in ("q_weight", "k_weight")]
        elif ratio:
            out += _v4_compressor(f"{a}.compressor", spec, ratio, spec.head_dim)
            if ratio == 4:
                out += _indexer(f"{a}.indexer", spec) + _v4_compressor(f"{a}.indexer.compressor", spec, ratio, spec.index_dim)
    for stage in range(spec.draft_stages):
        p = f"mtp.{stage}"
        out += _block(p, spec, spec.draft_experts)
        if stage == 0:
            out += [_linear(f"{p}.main_proj.weight", d, len(spec.draft_taps) * d), _norm(f"{p}.main_norm.weight", d)]
        if stage == spec.draft_stages - 1:
            out.append(_norm(f"{p}.norm.weight", d))
            if not spec.v41:
                out += _head_merge(f"{p}.", spec)
            w1, w2 = ("embed", "head") if spec.v41 else ("markov_w1", "markov_w2")
            out += [Param(f"{p}.markov_head.{w1}.weight", (v, spec.draft_rank), "bf16", "adam", "embed", 0.5),
                    Param(f"{p}.markov_head.{w2}.weight", (v, spec.draft_rank), "bf16", "adam", "head", 0.02),
                    Param(f"{p}.confidence_head.proj.weight", (1, d + spec.draft_rank), "bf16f", "adam", "gate", 0.01)]
    return out


class Group:
    """Parameters of one shape, kind and optimiser class, stacked along dim 0."""

    def __init__(self, params: list[Param], device: torch.device):
        self.params, self.kind = params, params[0].kind
        p, n = params[0], len(params)
        self.master = torch.zeros(n, *p.shape, device=device)
        if self.kind == "moe2":  # compute layout [dim, experts * inter]: one GEMM sums over experts
            e, d, i = p.shape
            compute_shape = (n, d, e * i)
        elif self.kind == "moe13":
            compute_shape = (n, math.prod(p.shape[:-1]), p.shape[-1])
        else:
            compute_shape = (n, *p.shape)
        dtype = torch.float32 if self.kind in ("bf16f", "f32") else torch.bfloat16
        self.compute = torch.zeros(compute_shape, dtype=dtype, device=device)
        self.grad = torch.zeros_like(self.compute)

    def leaves(self):
        """(name, compute leaf) pairs; each leaf accumulates its gradient straight into `grad`."""
        for i, p in enumerate(self.params):
            leaf = self.compute[i].detach().requires_grad_()
            leaf.grad = self.grad[i]
            yield p.name, leaf

    def quantised(self, grid: int) -> tuple[torch.Tensor, ...]:
        """(values in master shape, ...) as exported; fp8 and fp4 kinds also return codes and scales where one call gives them."""
        w = self.master
        if self.kind == "fp8":
            return quant.weight_fp8(w, grid)
        if self.kind == "table":
            return quant.weight_rows_fp8(w)
        if self.kind in ("moe13", "moe2"):
            routed = quant.weight_fp4(w[:, :-1])[0]
            return (torch.cat([routed, quant.weight_fp8(w[:, -1:], grid)[0]], 1),)
        return (w,)

    def refresh(self, grid: int, quantise: bool) -> None:
        value = self.quantised(grid)[0] if quantise else self.master
        if self.kind == "bf16f":
            value = value.bfloat16()
        if self.kind == "moe2":
            value = value.permute(0, 2, 1, 3).flatten(2)
        self.compute.copy_(value.reshape(self.compute.shape))

    def master_grad(self) -> torch.Tensor:
        """Gradient as float32 in the master's shape."""
        g = self.grad
        if self.kind == "moe2":
            e, d, i = self.params[0].shape
            g = g.unflatten(2, (e, i)).permute(0, 2, 1, 3)
        return g.float().reshape(self.master.shape)


class Store:
    """All groups of a model. `weights[name]` is the compute leaf the forward pass uses."""

    def __init__(self, spec: Spec, device: torch.device, seed: int = 1):
        self.spec, self.device = spec, device
        self.params = list_params(spec)
        keyed: dict[tuple, list[Param]] = {}
        for p in self.params:
            keyed.setdefault((p.part, p.kind, p.shape, p.opt, p.lr), []).append(p)
        self.groups = [Group(ps, device) for ps in keyed.values()]
        self.place = {p.name: (g, i) for g in self.groups for i, p in enumerate(g.params)}
        self._initialise(seed)
        self.weights: dict[str, torch.Tensor] = {}
        for g in self.groups:
            self.weights.update(g.leaves())
        self.refresh(True)

    def master(self, name: str) -> torch.Tensor:
        g, i = self.place[name]
        return g.master[i]

    def _initialise(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        for p in self.params:
            value = torch.randn(p.shape, generator=rng) * p.std + p.fill
            if p.name.endswith(("hc_attn_base", "hc_ffn_base")):
                value = self._mixing_base(p.name, rng)
            self.master(p.name).copy_(value)

    def _mixing_base(self, name: str, rng: torch.Generator) -> torch.Tensor:
        """Near-identity residual; each sublayer prefers reading one copy, which breaks the symmetry between copies."""
        hc = self.spec.hc
        parts = name.split(".")
        turn = (int(parts[1]) * 2 + ("ffn" in parts[2])) % hc
        pre = torch.full((hc,), -1.0)
        pre[turn] = 1.5
        post = torch.randn(hc, generator=rng) * 0.4
        comb = torch.eye(hc) * 3.0
        return torch.cat([pre, post, comb.flatten()])

    @torch.no_grad()
    def refresh(self, quantise: bool, part: str | None = None) -> None:
        for g in self.groups:
            if part is None or g.params[0].part == part:
                g.refresh(self.spec.block, quantise)

    def zero_grad(self) -> None:
        torch._foreach_zero_([g.grad for g in self.groups])
