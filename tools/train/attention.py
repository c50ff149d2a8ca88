"""Attention and index scoring with hand-written backward passes.

head_dim 512 rules out the fused attention kernels of PyTorch. All heads share one KV vector, so heads fold into the row
dimension and everything is a batched bf16 matrix product plus one fused softmax (spec/model.md 3.1): window scores come
from 128-row blocks against the own and the previous block, compressed scores from a dense [rows, entries] product.
Probabilities are kept in bf16; scores are never stored for the backward pass.
"""

from __future__ import annotations

import torch

from pieces import piece_any_length

_NEG = -1e30


@piece_any_length
def softmax_joint(sw, sc, sink, wmask, cmask, scale: float):
    """Window scores [G,R,H,W], compressed scores [G,R,H,C] (bf16), sink [H], masks [*,R,W] and [*,R,C] -> probabilities.

    The sink joins the denominator only. Returns (pw, pc) in bf16 and p_sink float32 [G,R,H].
    """
    w = torch.where(wmask.unsqueeze(2), sw.float() * scale, _NEG)
    c = torch.where(cmask.unsqueeze(2), sc.float() * scale, _NEG)
    m = torch.maximum(w.amax(-1), c.amax(-1))
    ew, ec, es = torch.exp(w - m.unsqueeze(-1)), torch.exp(c - m.unsqueeze(-1)), torch.exp(sink - m)
    inv = 1.0 / (ew.sum(-1) + ec.sum(-1) + es)
    return (ew * inv.unsqueeze(-1)).to(sw.dtype), (ec * inv.unsqueeze(-1)).to(sw.dtype), es * inv


@piece_any_length
def softmax_window(sw, sink, wmask, scale: float):
    """As `softmax_joint` without compressed entries."""
    w = torch.where(wmask.unsqueeze(2), sw.float() * scale, _NEG)
    m = w.amax(-1)
    ew, es = torch.exp(w - m.unsqueeze(-1)), torch.exp(sink - m)
    inv = 1.0 / (ew.sum(-1) + es)
    return (ew * inv.unsqueeze(-1)).to(sw.dtype), es * inv


@piece_any_length
def softmax_grad(p, dp, delta, scale: float):
    """d(raw score) of softmax probabilities p [G,R,H,K] given dp and delta [G,R,H]."""
    return (p.float() * (dp.float() - delta.unsqueeze(-1)) * scale).to(p.dtype)


class _Attend(torch.autograd.Function):
    """q [N, H, D], window keys kw [nw, W, D], compressed keys kc [nc, C, D] or None -> out [N, H, D].

    Block b of kw serves rows b*N/nw .. ; likewise kc. Masks broadcast over [G, R, *] with G*R = N.
    Second output: attention mass over the compressed entries summed over heads, bf16 [G, R, C], without gradient.
    """

    @staticmethod
    def forward(ctx, q, kw, kc, sink, wmask, cmask, groups, scale, want_mass):
        n, h, d = q.shape
        rows = n // groups
        qw = q.view(kw.shape[0], -1, d)
        sw = torch.bmm(qw, kw.transpose(1, 2)).view(groups, rows, h, -1)
        mass = None
        if kc is None:
            pw, ps = softmax_window(sw, sink, wmask, scale)
            pc = None
            out = torch.bmm(pw.view(kw.shape[0], -1, pw.shape[-1]), kw).view(n, h, d)
        else:
            sc = torch.bmm(q.view(kc.shape[0], -1, d), kc.transpose(1, 2)).view(groups, rows, h, -1)
            pw, pc, ps = softmax_joint(sw, sc, sink, wmask, cmask, scale)
            del sc
            out = torch.bmm(pc.view(kc.shape[0], -1, pc.shape[-1]), kc).view(n, h, d)
            out = out + torch.bmm(pw.view(kw.shape[0], -1, pw.shape[-1]), kw).view(n, h, d)
            if want_mass:
                mass = pc.sum(2)
        ctx.save_for_backward(q, kw, kc, pw, pc, ps, out)
        ctx.scale, ctx.groups = scale, groups
        if mass is not None:
            ctx.mark_non_differentiable(mass)
        return out, mass

    @staticmethod
    def backward(ctx, dout, _):
        q, kw, kc, pw, pc, ps, out = ctx.saved_tensors
        n, h, d = q.shape
        scale, shape = ctx.scale, (ctx.groups, n // ctx.groups, h)
        dout = dout.contiguous()
        delta = (dout.float() * out.float()).sum(-1).view(shape)
        dsink = -(ps * delta).sum((0, 1))

        def side(p, k):
            nk, kdim = k.shape[0], p.shape[-1]
            g = dout.view(nk, -1, d)
            ds = softmax_grad(p, torch.bmm(g, k.transpose(1, 2)).view(p.shape), delta, scale).view(nk, -1, kdim)
            dk = torch.bmm(p.view(nk, -1, kdim).transpose(1, 2), g) + torch.bmm(ds.transpose(1, 2), q.view(nk, -1, d))
            return torch.bmm(ds, k).view(n, h, d), dk

        dq, dkw = side(pw, kw)
        dkc = None
        if kc is not None:
            dq_c, dkc = side(pc, kc)
            dq = dq + dq_c
        return dq, dkw, dkc, dsink, None, None, None, None, None


def attend(q, kw, kc, sink, wmask, cmask, groups: int, scale: float, want_mass: bool = False):
    return _Attend.apply(q, kw, kc, sink, wmask, cmask, groups, scale, want_mass)


def window_blocks(kv: torch.Tensor, window: int) -> torch.Tensor:
    """[N, D] rows -> [N/window, 2*window, D]: previous block, own block. The first block of a row of text sees the last
    block of the row before it; the mask removes that."""
    b = kv.view(-1, window, kv.shape[-1])
    return torch.cat([b.roll(1, 0), b], 1)


def window_mask(length: int, window: int, device) -> torch.Tensor:
    """[length, 2*window] bool for `window_blocks`: positions max(0, t - window + 1) .. t."""
    t = torch.arange(length, device=device)[:, None]
    j = torch.arange(2 * window, device=device)[None, :]
    pos = t - t % window - window + j
    return (pos <= t) & (pos > t - window) & (pos >= 0)


@piece_any_length
def index_combine(raw, weights):
    """raw q.k products [B,T,H,C] bf16, head weights [B,T,H] float32 -> scores float32 [B,T,C] (spec 3.4, fp32 scores)."""
    return (torch.relu(raw.float()) * weights.unsqueeze(-1)).sum(2)


@piece_any_length
def index_combine_grad(raw, weights, ds):
    """Gradients of `index_combine`: d raw (bf16) and d weights."""
    d = ds.float().unsqueeze(2)
    r = raw.float()
    return torch.where(r > 0, d * weights.unsqueeze(-1), 0.0).to(raw.dtype), (torch.relu(r) * d).sum(-1)


class _IndexScores(torch.autograd.Function):
    """qi [N, H, d], keys [B, C, d], weights [N, H] float32 -> S [B, T, C] float32 with N = B*T."""

    @staticmethod
    def forward(ctx, qi, keys, weights):
        ctx.save_for_backward(qi, keys, weights)
        b, (n, h, d) = keys.shape[0], qi.shape
        raw = torch.bmm(qi.view(b, -1, d), keys.transpose(1, 2)).view(b, n // b, h, -1)
        return index_combine(raw, weights.view(b, n // b, h))

    @staticmethod
    def backward(ctx, ds):
        qi, keys, weights = ctx.saved_tensors
        b, (n, h, d) = keys.shape[0], qi.shape
        q = qi.view(b, -1, d)
        raw = torch.bmm(q, keys.transpose(1, 2)).view(b, n // b, h, -1)
        draw, dw = index_combine_grad(raw, weights.view(b, n // b, h), ds)
        draw = draw.view(b, -1, keys.shape[1])
        return torch.bmm(draw, keys).view(n, h, d), torch.bmm(draw.transpose(1, 2), q), dw.view(n, h)


def index_scores(qi, keys, weights):
    return _IndexScores.apply(qi, keys, weights)


@piece_any_length
def _kl_core(scores, mass, mask):
    """KL(mass normalised || softmax(scores)) over masked entries: per-row loss [B,T] and d loss/d scores (bf16)."""
    s = torch.where(mask, scores.float(), _NEG)
    m = s.amax(-1, keepdim=True)
    e = torch.where(mask, torch.exp(s - m), 0.0)
    z = e.sum(-1, keepdim=True).clamp_min(1e-30)
    target = torch.where(mask, mass.float(), 0.0)
    total = target.sum(-1, keepdim=True)
    live = total > 1e-6
    target = target / total.clamp_min(1e-6)
    logq = s - m - torch.log(z)
    loss = torch.where(target > 0, target * (torch.log(target.clamp_min(1e-30)) - logq), 0.0).sum(-1)
    grad = torch.where(live, e / z - target, 0.0)
    return torch.where(live.squeeze(-1), loss, 0.0), grad.to(mass.dtype)


class _IndexKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, mass, mask, weight):
        loss, grad = _kl_core(scores, mass, mask)
        share = torch.full_like(loss, 1 / loss.numel()) if weight is None else weight / weight.sum()
        ctx.save_for_backward(grad, share)
        return (loss * share).sum()

    @staticmethod
    def backward(ctx, g):
        grad, share = ctx.saved_tensors
        return grad.float() * (g * share).unsqueeze(-1), None, None, None


def index_kl(scores, mass, mask, weight=None):
    """Mean over rows of the KL divergence from the attention mass to the index distribution; trains the indexer only.

    weight: float32 [B, T] of the rows, or None for equal ones.
    """
    return _IndexKL.apply(scores, mass, mask, weight)


@torch.no_grad()
def select_top(scores: torch.Tensor, mask: torch.Tensor, k: int) -> torch.Tensor:
    """Top-k entries of scores [B,T,C] inside mask (broadcastable): bool [B,T,C]. Never adds an entry outside the mask."""
    masked = torch.where(mask, scores.float(), float("-inf"))
    if scores.shape[-1] <= k:
        return torch.isfinite(masked)
    top = torch.topk(masked, k, -1, sorted=False).indices
    return torch.zeros_like(masked, dtype=torch.bool).scatter_(-1, top, True) & torch.isfinite(masked)


@torch.no_grad()
def candidate_blocks(scores: torch.Tensor, visible: torch.Tensor, keep: int, block: int) -> torch.Tensor:
    """Candidate mask of the two-level selection (spec 3.5): best `keep` blocks by their maximum, newest block pinned."""
    masked = torch.where(visible, scores.float(), float("-inf"))
    b, t, c = masked.shape
    best = torch.nn.functional.pad(masked, (0, -c % block), value=float("-inf")).unflatten(-1, (-1, block)).amax(-1)
    if best.shape[-1] <= keep:
        return visible.expand(b, t, c)
    newest = ((visible.sum(-1, keepdim=True) - 1) // block).clamp_min(0).expand(b, t, 1)
    pinned = best.scatter(-1, newest, float("inf"))
    top = torch.topk(pinned, keep, -1, sorted=False).indices
    chosen = torch.zeros_like(pinned, dtype=torch.bool).scatter_(-1, top, True) & (pinned > float("-inf"))
    return chosen.repeat_interleave(block, -1)[..., :c] & visible
