"""Quantise-dequantise primitives of spec/model.md appendix A, with straight-through gradients for training.

Every function returns the values a real kernel would see after dequantisation. All scales that are powers of two are
taken by bit arithmetic, so eager, compiled, CPU and CUDA runs agree to the bit.
"""

from __future__ import annotations

import torch

_E4M3_MAX = 448.0


def pow2_ceil(x: torch.Tensor) -> torch.Tensor:
    """Smallest power of two >= x, for positive normal float32 x."""
    return ((x.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def round_e4m3(x: torch.Tensor) -> torch.Tensor:
    """float32 -> nearest e4m3 value (ties to even), as float32; |x| must be <= 448."""
    return x.to(torch.float8_e4m3fn).float()


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """float32 with |x| <= 6 -> nearest e2m1 value, ties to the even code (appendix A.5)."""
    a = x.abs()
    step = torch.where(a < 2.0, 0.5, torch.where(a < 4.0, 1.0, 2.0))
    return torch.copysign(torch.round(a / step) * step, x)


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.float().unflatten(-1, (-1, size))


def act_fp8(x: torch.Tensor, size: int) -> torch.Tensor:
    """A.1: per row and `size` values, e4m3 with a power-of-two scale. bf16 in, bf16 out, no gradient."""
    b = _blocks(x, size)
    scale = pow2_ceil(b.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1.0 / 448.0))
    return (round_e4m3((b / scale).clamp(-_E4M3_MAX, _E4M3_MAX)) * scale).flatten(-2).to(x.dtype)


def act_fp4(x: torch.Tensor, size: int = 32) -> torch.Tensor:
    """A.3: e2m1 with a power-of-two scale (index queries and keys)."""
    b = _blocks(x, size)
    scale = pow2_ceil(b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1.0 / 6.0))
    return (round_e2m1((b / scale).clamp(-6, 6)) * scale).flatten(-2).to(x.dtype)


def act_fp4_e4m3(x: torch.Tensor, size: int = 16) -> torch.Tensor:
    """A.4: e2m1 with an E4M3 scale (V4.1 compressed entries)."""
    b = _blocks(x, size)
    scale = round_e4m3((b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9) / 6.0).clamp_max(_E4M3_MAX))
    return (round_e2m1((b / scale).clamp(-6, 6)) * scale).flatten(-2).to(x.dtype)


def straight_through(x: torch.Tensor, quantise, *args) -> torch.Tensor:
    """Forward value of `quantise(x)`, identity gradient."""
    d = x.detach()
    # In float32 the sum is exact up to the final rounding, and quantised values are representable in bf16.
    return (x.float() + (quantise(d, *args).float() - d.float())).to(x.dtype)


def weight_fp8(w: torch.Tensor, grid: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[..., R, C] float32 -> (dequantised, e4m3 values as float32, scales [..., ceil(R/grid), ceil(C/grid)])."""
    rows, cols = w.shape[-2:]
    pad = (0, -cols % grid, 0, -rows % grid)
    p = torch.nn.functional.pad(w, pad) if any(pad) else w
    b = p.unflatten(-2, (-1, grid)).unflatten(-1, (-1, grid))  # [..., r, grid, c, grid]
    scale = pow2_ceil(b.abs().amax((-3, -1), keepdim=True).clamp_min(2.0**-100) * (1.0 / 448.0))
    q = round_e4m3((b / scale).clamp(-_E4M3_MAX, _E4M3_MAX))
    flat = lambda t: t.flatten(-2).flatten(-3, -2)[..., :rows, :cols]
    return flat(q * scale), flat(q), scale.squeeze(-1).squeeze(-2)


def weight_fp4(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[..., R, K] float32 -> (dequantised, e2m1 values as float32, scales [..., R, K/32])."""
    b = w.unflatten(-1, (-1, 32))
    scale = pow2_ceil(b.abs().amax(-1, keepdim=True).clamp_min(2.0**-100) * (1.0 / 6.0))
    q = round_e2m1((b / scale).clamp(-6, 6))
    return (q * scale).flatten(-2), q.flatten(-2), scale.squeeze(-1)


def weight_rows_fp8(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[rows, C] float32 -> e4m3 with one scale per row and 32 columns (Engram table, spec 7.1)."""
    b = w.unflatten(-1, (-1, 32))
    scale = pow2_ceil(b.abs().amax(-1, keepdim=True).clamp_min(2.0**-100) * (1.0 / 448.0))
    q = round_e4m3((b / scale).clamp(-_E4M3_MAX, _E4M3_MAX))
    return (q * scale).flatten(-2), q.flatten(-2), scale.squeeze(-1)


def hadamard(n: int) -> torch.Tensor:
    """Walsh matrix in natural order, float32 [n, n], entries +-1 (V4 indexer, spec 3.4)."""
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h
