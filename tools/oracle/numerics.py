"""Number formats and the elementary operations of the reference (spec/model.md appendix A).

Every quantiser comes as a pair: `quantise_*` gives the stored bytes (codes and scales, uint8 tensors), `dequantise_*` gives
the bf16 values those bytes mean. The model itself always uses the round trip, so what it computes with is exactly what a
packed cache would hold.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16
F32 = torch.float32

E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] + [-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
E4M3_VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(F32)
# A.5: a tie goes to the even code, so every second midpoint belongs to the upper neighbour.
_E2M1_STRICT = (0.25, 1.25, 2.5, 5.0)
_E2M1_INCLUSIVE = (0.75, 1.75, 3.5)


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """float -> e4m3 code bytes (uint8), round to nearest even, saturating at +-448."""
    return x.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_decode(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes -> fp32 values."""
    return E4M3_VALUES[codes.long()]


def e2m1_encode(x: torch.Tensor) -> torch.Tensor:
    """float -> e2m1 codes 0..15 (uint8, one per value), round to nearest even code, saturating at +-6."""
    a = x.abs()
    code = torch.zeros_like(a, dtype=torch.uint8)
    for t in _E2M1_STRICT:
        code += (a > t).to(torch.uint8)
    for t in _E2M1_INCLUSIVE:
        code += (a >= t).to(torch.uint8)
    return code + torch.signbit(x).to(torch.uint8) * 8


def e2m1_decode(codes: torch.Tensor) -> torch.Tensor:
    """codes 0..15 -> fp32 values."""
    return E2M1_VALUES[codes.long()]


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """[..., K] codes -> [..., K/2] bytes, even k in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., K/2] bytes -> [..., K] codes."""
    packed = packed.view(torch.uint8)
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def e8m0_decode(codes: torch.Tensor) -> torch.Tensor:
    """e8m0 bytes -> fp32 powers of two, 2^(b-127)."""
    return torch.ldexp(torch.ones(codes.shape, dtype=torch.float64), codes.long() - 127).to(F32)


def ceil_log2(x: torch.Tensor) -> torch.Tensor:
    """Smallest integer e with 2^e >= x, taken from the bits of a positive normal fp32 (no logarithm is evaluated)."""
    bits = x.contiguous().view(torch.int32)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def _blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    if x.shape[-1] % block:
        raise ValueError(f"last dimension {x.shape[-1]} is not a multiple of the quantisation block {block}")
    return x.float().unflatten(-1, (-1, block))


def quantise_fp8(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A.1: [..., K] -> e4m3 codes [..., K], e8m0 bytes [..., K/block]."""
    xb = _blocks(x, block)
    amax = xb.abs().amax(-1).clamp_min(1e-4)
    e = ceil_log2(amax * torch.tensor(1.0 / 448.0, dtype=F32))
    scale = torch.ldexp(torch.ones_like(amax), e)
    return e4m3_encode(xb / scale.unsqueeze(-1)).flatten(-2), (e + 127).to(torch.uint8)


def dequantise_fp8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    block = codes.shape[-1] // scales.shape[-1]
    return (_blocks(e4m3_decode(codes), block) * e8m0_decode(scales).unsqueeze(-1)).flatten(-2).to(BF16)


def quantise_fp4_e8m0(x: torch.Tensor, block: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """A.3: [..., K] -> packed e2m1 [..., K/2], e8m0 bytes [..., K/block]."""
    xb = _blocks(x, block)
    amax = xb.abs().amax(-1).clamp_min(6.0 * 2.0**-126)
    e = ceil_log2(amax * torch.tensor(1.0 / 6.0, dtype=F32))
    scale = torch.ldexp(torch.ones_like(amax), e)
    codes = e2m1_encode((xb / scale.unsqueeze(-1)).clamp(-6.0, 6.0)).flatten(-2)
    return pack_nibbles(codes), (e + 127).to(torch.uint8)


def dequantise_fp4_e8m0(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = e2m1_decode(unpack_nibbles(packed))
    block = values.shape[-1] // scales.shape[-1]
    return (_blocks(values, block) * e8m0_decode(scales).unsqueeze(-1)).flatten(-2).to(BF16)


def quantise_fp4_e4m3(x: torch.Tensor, block: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """A.4: [..., K] -> packed e2m1 [..., K/2], e4m3 scale bytes [..., K/block]."""
    xb = _blocks(x, block)
    amax = xb.abs().amax(-1).clamp_min(6.0 * 2.0**-9)
    scales = e4m3_encode(amax / 6.0)
    codes = e2m1_encode((xb / e4m3_decode(scales).unsqueeze(-1)).clamp(-6.0, 6.0)).flatten(-2)
    return pack_nibbles(codes), scales


def dequantise_fp4_e4m3(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = e2m1_decode(unpack_nibbles(packed))
    block = values.shape[-1] // scales.shape[-1]
    return (_blocks(values, block) * e4m3_decode(scales).unsqueeze(-1)).flatten(-2).to(BF16)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrix product a b of fp32 values, summed in double and rounded to fp32 once.

    The published kernels sum in fp32 in an order of their own, which nobody can repeat; summing in double makes a row's
    bits independent of the rows beside it, of the machine and of its threads.
    """
    return (a.double() @ b.double()).to(F32)


class Weight:
    """A linear weight [out, in] as fp32 values, with what decides the arithmetic of a product with it.

    kind: "quantised" (fp8 or fp4 in the file), "bf16" or "f32". Scales are powers of two, so applying them to the values instead
    of to partial sums changes no bit.
    """

    def __init__(self, value: torch.Tensor, kind: str):
        self.value = value.to(F32)
        self.kind = kind


class Arithmetic:
    """The rounding points of one generation; `quantised=False` turns all of them off (plain fp32, for the HF comparison)."""

    def __init__(self, quantised: bool, act_block: int):
        self.quantised = quantised
        self.act_block = act_block
        self.dtype = BF16 if quantised else F32

    def act(self, x: torch.Tensor) -> torch.Tensor:
        """Rounds to the activation dtype: bf16, or fp32 when unquantised."""
        return x.to(self.dtype)

    def fp8_roundtrip(self, x: torch.Tensor, block: int) -> torch.Tensor:
        return dequantise_fp8(*quantise_fp8(x, block)) if self.quantised else x

    def fp4_e8m0_roundtrip(self, x: torch.Tensor) -> torch.Tensor:
        return dequantise_fp4_e8m0(*quantise_fp4_e8m0(x)) if self.quantised else x

    def fp4_e4m3_roundtrip(self, x: torch.Tensor) -> torch.Tensor:
        return dequantise_fp4_e4m3(*quantise_fp4_e4m3(x)) if self.quantised else x

    def linear(self, x: torch.Tensor, w: Weight) -> torch.Tensor:
        """A.7: y = x W^T. Quantised weight: A.1 on x, then A.2. bf16 weight: one sum, bf16 result. fp32: fp32 result."""
        if w.kind == "f32":
            return product(x, w.value.T)
        if w.kind == "bf16" or not self.quantised:
            return self.act(product(x, w.value.T))
        return self.act(product(self.fp8_roundtrip(x, self.act_block).float(), w.value.T))

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        """A.6: the factor and both products in fp32, one rounding at the end. weight None: the weightless norm of V4's query heads."""
        xf = x.float()
        y = xf * (1.0 / (xf.double().square().mean(-1, keepdim=True) + eps).sqrt()).to(F32)
        return self.act(y if weight is None else weight.float() * y)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Natural-order Walsh-Hadamard transform of the last dimension (a power of two), scaled to be orthogonal; fp32."""
    n = x.shape[-1]
    y = x.float()
    step = 1
    while step < n:
        y = y.unflatten(-1, (n // (2 * step), 2, step))
        y = torch.stack((y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]), dim=-2).flatten(-3)
        step *= 2
    return y * n**-0.5


def sqrt_softplus(z: torch.Tensor) -> torch.Tensor:
    """Router score: sqrt(softplus(z)), softplus(z) = z above 20."""
    return F.softplus(z.double(), threshold=20.0).sqrt().to(F32)
