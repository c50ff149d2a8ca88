"""Sinkhorn normalisation of the 4x4 hyper-connection matrices (spec/model.md 2.2), with an exact backward pass.

Every step divides rows or columns by (sum + eps). The backward pass needs only each step's result and divisors:
for C' = C / d, d = sum(C) + eps along one axis, dC = (dC' - sum(dC' * C')) / d and C = C' * d. So the forward stores the
divisors and the last matrix, nothing else. On CUDA both passes are one Triton kernel each (the plain version is
40 launches per sublayer); `self_test` compares it with the plain version once and falls back when it differs.
"""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of PyTorch come without Triton
    triton = None

_use_triton = False


def _forward_plain(raw: torch.Tensor, iters: int, eps: float):
    c = torch.softmax(raw, -1)
    soft = c
    c = c + eps
    divisors = []
    for step in range(2 * iters - 1):
        d = c.sum(-2 if step % 2 == 0 else -1, keepdim=True) + eps
        c = c / d
        divisors.append(d.flatten(1))
    return c, soft, torch.stack(divisors)


def _backward_plain(grad: torch.Tensor, c: torch.Tensor, soft: torch.Tensor, divisors: torch.Tensor):
    for step in range(divisors.shape[0] - 1, -1, -1):
        axis = -2 if step % 2 == 0 else -1
        d = divisors[step].unsqueeze(axis)
        grad = (grad - (grad * c).sum(axis, keepdim=True)) / d
        c = c * d
    return soft * (grad - (grad * soft).sum(-1, keepdim=True))


if triton is not None:

    @triton.jit
    def _forward_kernel(raw, out, soft, divisors, n, eps, STEPS: tl.constexpr, BLOCK: tl.constexpr):
        token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = token < n
        j = tl.arange(0, 4)
        at = token[:, None, None] * 16 + j[None, :, None] * 4 + j[None, None, :]
        mask = live[:, None, None] & (j[None, :, None] >= 0) & (j[None, None, :] >= 0)
        x = tl.load(raw + at, mask=mask, other=0.0)
        e = tl.exp(x - tl.max(x, 2)[:, :, None])
        s = e / tl.sum(e, 2)[:, :, None]
        tl.store(soft + at, s, mask=mask)
        c = s + eps
        line = token[:, None] * 4 + j[None, :]
        line_mask = live[:, None] & (j[None, :] >= 0)
        d = tl.sum(c, 1) + eps
        c = c / d[:, None, :]
        tl.store(divisors + line, d, mask=line_mask)
        for step in range(1, STEPS, 2):
            d = tl.sum(c, 2) + eps
            c = c / d[:, :, None]
            tl.store(divisors + step * n * 4 + line, d, mask=line_mask)
            d = tl.sum(c, 1) + eps
            c = c / d[:, None, :]
            tl.store(divisors + (step + 1) * n * 4 + line, d, mask=line_mask)
        tl.store(out + at, c, mask=mask)

    @triton.jit
    def _backward_kernel(grad, out, soft, divisors, result, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
        token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = token < n
        j = tl.arange(0, 4)
        at = token[:, None, None] * 16 + j[None, :, None] * 4 + j[None, None, :]
        mask = live[:, None, None] & (j[None, :, None] >= 0) & (j[None, None, :] >= 0)
        line = token[:, None] * 4 + j[None, :]
        line_mask = live[:, None] & (j[None, :] >= 0)
        g = tl.load(grad + at, mask=mask, other=0.0)
        c = tl.load(out + at, mask=mask, other=0.0)
        for k in range(0, STEPS // 2):
            step = STEPS - 1 - 2 * k
            d = tl.load(divisors + step * n * 4 + line, mask=line_mask, other=1.0)
            g = (g - tl.sum(g * c, 1)[:, None, :]) / d[:, None, :]
            c = c * d[:, None, :]
            d = tl.load(divisors + (step - 1) * n * 4 + line, mask=line_mask, other=1.0)
            g = (g - tl.sum(g * c, 2)[:, :, None]) / d[:, :, None]
            c = c * d[:, :, None]
        d = tl.load(divisors + line, mask=line_mask, other=1.0)
        g = (g - tl.sum(g * c, 1)[:, None, :]) / d[:, None, :]
        s = tl.load(soft + at, mask=mask, other=0.0)
        tl.store(result + at, s * (g - tl.sum(g * s, 2)[:, :, None]), mask=mask)


def _forward_triton(raw: torch.Tensor, iters: int, eps: float):
    n, steps, block = raw.shape[0], 2 * iters - 1, 128
    out, soft = torch.empty_like(raw), torch.empty_like(raw)
    divisors = raw.new_empty(steps, n, 4)
    _forward_kernel[(triton.cdiv(n, block),)](raw, out, soft, divisors, n, eps, STEPS=steps, BLOCK=block)
    return out, soft, divisors


def _backward_triton(grad: torch.Tensor, c: torch.Tensor, soft: torch.Tensor, divisors: torch.Tensor):
    n, block = grad.shape[0], 128
    result = torch.empty_like(grad)
    _backward_kernel[(triton.cdiv(n, block),)](grad, c, soft, divisors, result, n, STEPS=divisors.shape[0], BLOCK=block)
    return result


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, raw, iters, eps):
        raw = raw.contiguous()
        fast = _use_triton and raw.is_cuda
        c, soft, divisors = (_forward_triton if fast else _forward_plain)(raw, iters, eps)
        ctx.save_for_backward(c, soft, divisors)
        ctx.fast = fast
        return c

    @staticmethod
    def backward(ctx, grad):
        run = _backward_triton if ctx.fast else _backward_plain
        return run(grad.contiguous().float(), *ctx.saved_tensors), None, None


def sinkhorn(raw: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
    """[N, 4, 4] float32 logits -> doubly stochastic [N, 4, 4]; `iters` counts the first softmax + column pass."""
    return _Sinkhorn.apply(raw, iters, eps)


def self_test(device: torch.device) -> bool:
    """Turns the Triton kernels on if they exist and agree with the plain version; returns whether they are on."""
    global _use_triton
    _use_triton = False
    if triton is None or device.type != "cuda":
        return False
    try:
        raw = torch.randn(1000, 4, 4, device=device) * 2
        grad = torch.randn_like(raw)
        want = _forward_plain(raw, 20, 1e-6)
        got = _forward_triton(raw, 20, 1e-6)
        back = _backward_triton(grad, *got)
        error = max((got[0] - want[0]).abs().max().item(), (back - _backward_plain(grad, *want)).abs().max().item())
        _use_triton = error < 1e-4
        if not _use_triton:
            print(f"sinkhorn: Triton kernel differs by {error:.2e}, using the plain version", flush=True)
    except Exception as exc:  # any compiler or driver trouble: slower is better than dead
        print(f"sinkhorn: Triton kernel unavailable ({exc}), using the plain version", flush=True)
    return _use_triton
