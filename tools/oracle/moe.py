"""Mixture of experts (spec/model.md section 5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from config import BlockSpec, ModelSpec
from numerics import Arithmetic, sqrt_softplus


class Expert:
    def __init__(self, ck, prefix: str):
        self.w1, self.w2, self.w3 = (ck.weight(f"{prefix}.w{i}") for i in (1, 2, 3))

    def forward(self, ar: Arithmetic, x, limit: float, weight=None):
        """x [n, D], routing weight [n] or None (shared expert) -> y [n, D]. The weight goes in before w2 is applied."""
        gate = ar.linear(x, self.w1).float().clamp_max(limit)
        up = ar.linear(x, self.w3).float().clamp(-limit, limit)
        a = F.silu(gate.double()).float() * up
        if weight is not None:
            a = weight.unsqueeze(-1) * a
        return ar.linear(ar.act(a), self.w2)


class Moe:
    def __init__(self, ck, spec: ModelSpec, block: BlockSpec, ar: Arithmetic, options):
        self.spec, self.block, self.ar, self.options = spec, block, ar, options
        p = block.prefix + ".ffn"
        self.gate = ck.weight(p + ".gate", "f32")
        self.gate.kind = "f32"
        self.table = ck.get(p + ".gate.tid2eid") if block.hashed else None
        self.bias = None if block.hashed else ck.get(p + ".gate.bias")
        self.experts = [Expert(ck, f"{p}.experts.{e}") for e in range(block.experts)]
        self.shared = Expert(ck, p + ".shared_experts")

    def route(self, x, ids):
        """x [T, D], token ids [T] -> (expert ids [T, k] int64, weights [T, k] fp32, unbiased scores [T, E])."""
        scores = sqrt_softplus(self.ar.linear(x, self.gate))
        if self.block.hashed:
            chosen = self.table[ids]
        else:
            chosen = torch.topk(scores + self.bias, self.block.top_k, dim=-1).indices
        weights = scores.gather(1, chosen).double()
        if not self.spec.v41 or self.block.top_k > 1:
            # The published V4 has no epsilon; six scores of zero would be 0/0 there and are equal weights here.
            total = weights.sum(-1, keepdim=True)
            epsilon = 1e-20 if self.spec.v41 else 0.0
            weights = torch.where(total > 0, weights / (total + epsilon), torch.full_like(weights, 1 / self.block.top_k))
        return chosen, (weights * self.spec.route_scale).float(), scores

    def forward(self, x, ids):
        """x [T, D] -> y [T, D]; the experts and the shared one are summed in double."""
        chosen, weights, scores = self.route(x, ids)
        rec, b = self.options.record, self.block
        total = torch.zeros_like(x, dtype=torch.float64)
        parts = torch.zeros(*chosen.shape, x.shape[1], dtype=self.ar.dtype)
        for e, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == e)
            if row.numel():
                parts[row, slot] = expert.forward(self.ar, x[row], self.spec.swiglu_limit, weights[row, slot])
                total[row] += parts[row, slot].double()
        shared = self.shared.forward(self.ar, x, self.spec.swiglu_limit)
        y = self.ar.act((total + shared.double()).float())
        for name, value in (
            ("x", x), ("ids", chosen), ("weights", weights), ("scores", scores), ("parts", parts), ("shared", shared), ("y", y),
        ):  # fmt: skip
            rec(b, "ffn." + name, value)
        return y
