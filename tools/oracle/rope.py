"""Rotary tables A and B (spec/model.md 3.2). Pairs are adjacent elements; the rotation is fp32 with one final rounding."""

from __future__ import annotations

import math

import torch

from numerics import F32


def frequencies(dim: int, base: float, scaling: dict | None) -> torch.Tensor:
    """[dim/2] fp32 frequencies; scaling: the YaRN block of config.json, or None for the plain table."""
    freqs = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=F32) / dim))
    if scaling is None:
        return freqs
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]

    def turn(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(turn(scaling["beta_fast"])), 0)
    high = min(math.ceil(turn(scaling["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=F32) - low) / max(high - low, 0.001)).clamp(0, 1)
    smooth = 1 - ramp
    return freqs / factor * (1 - smooth) + freqs * smooth


def rotate(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rotates the LAST 2*len(freqs) elements of x [T, ..., D] by position [T]; the rest passes through. Same dtype out."""
    n = 2 * freqs.shape[0]
    angle = positions.to(F32).unsqueeze(-1) * freqs
    cos, sin = angle.double().cos().to(F32), angle.double().sin().to(F32)
    if inverse:
        sin = -sin
    shape = [x.shape[0]] + [1] * (x.dim() - 2) + [n // 2]
    cos, sin = cos.view(shape), sin.view(shape)
    head, tail = x[..., : x.shape[-1] - n], x[..., x.shape[-1] - n :].float().unflatten(-1, (-1, 2))
    a, b = tail[..., 0], tail[..., 1]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((head, turned.to(x.dtype)), dim=-1)
