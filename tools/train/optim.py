"""Muon for matrices, AdamW for the rest, on the stacked groups of params.py.

Muon (momentum, then Newton-Schulz orthogonalisation) learns faster than Adam at this size. Its update is scaled by
0.2 sqrt(max(rows, cols)) so that one learning rate serves both optimisers.
"""

from __future__ import annotations

import torch

from params import Group

# Peak learning rates by class.
LEARNING_RATES = {"matrix": 6e-3, "embed": 6e-3, "head": 3e-3, "vector": 3e-3, "mix": 1e-3, "gate": 2e-3}
WEIGHT_DECAY = {"matrix": 0.05, "head": 0.02}
_BETAS, _EPS, _MOMENTUM = (0.9, 0.95), 1e-10, 0.95


def newton_schulz(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """[batch, R, C] -> nearest (semi-)orthogonal matrices, quintic iteration in bf16."""
    tall = g.shape[-2] > g.shape[-1]
    x = (g / g.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)).bfloat16()
    if tall:
        x = x.transpose(-2, -1)
    for _ in range(steps):
        a = x @ x.transpose(-2, -1)
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.transpose(-2, -1) if tall else x


class Optimizer:
    """Steps the masters of `groups`. State is created lazily and keyed by group order."""

    def __init__(self, groups: list[Group], clip: float = 1.0):
        self.groups, self.clip, self.count = groups, clip, 0
        self.m = [torch.zeros_like(g.master) for g in groups]
        self.v = [torch.zeros_like(g.master) if g.params[0].opt == "adam" else torch.zeros(()) for g in groups]

    def state(self) -> dict:
        return {"count": self.count, "m": self.m, "v": self.v}

    def load_state(self, state: dict) -> None:
        self.count = state["count"]
        for mine, theirs in zip(self.m + self.v, state["m"] + state["v"]):
            mine.copy_(theirs)

    @torch.no_grad()
    def step(self, rate: float) -> torch.Tensor:
        """One update with all learning rates times `rate`; returns the gradient norm (device scalar).

        A step with a non-finite gradient is taken with zero gradients, without waiting for the device.
        """
        self.count += 1
        grads = [g.master_grad() for g in self.groups]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        scale = torch.where(torch.isfinite(norm), (self.clip / (norm + 1e-6)).clamp_max(1.0), 0.0)
        grads = [torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0) for g in grads]
        torch._foreach_mul_(grads, scale)
        c1, c2 = 1 - _BETAS[0] ** self.count, 1 - _BETAS[1] ** self.count
        for g, grad, m, v in zip(self.groups, grads, self.m, self.v):
            kind = g.params[0].lr
            lr = LEARNING_RATES[kind] * rate
            if kind in WEIGHT_DECAY:
                g.master.mul_(1 - lr * WEIGHT_DECAY[kind])
            if g.params[0].opt == "muon":
                m.lerp_(grad, 1 - _MOMENTUM)
                update = torch.lerp(grad, m, _MOMENTUM)
                shape = g.master.shape
                o = newton_schulz(update.reshape(-1, *shape[-2:]))
                g.master.add_(o.reshape(shape).float(), alpha=-lr * 0.2 * max(shape[-2:]) ** 0.5)
            else:
                m.lerp_(grad, 1 - _BETAS[0])
                v.lerp_(grad * grad, 1 - _BETAS[1])
                g.master.addcdiv_(m / c1, (v / c2).sqrt_().add_(_EPS), value=-lr)
        return norm
