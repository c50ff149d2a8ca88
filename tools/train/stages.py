"""The stages of a layer as pure functions of tensors; N = number of token rows, all layouts row-major.

They hold the rounding points of the reference (spec/model.md 2, 3, 5, 7 and appendix A). `quant_on` false leaves out the
activation quantisers; weights arrive already quantised (params.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pieces import piece
from quant import act_fp4, act_fp4_e4m3, act_fp8, straight_through


def _act(x, size: int, on: bool):
    return straight_through(x, act_fp8, size) if on else x


def rms(x, weight, eps: float):
    """A.6: float32 inside, one rounding to bf16."""
    f = x.float()
    return (weight * (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps))).bfloat16()


def rope(x, cos, sin):
    """Rotates adjacent pairs of the last 2*cos.shape[-1] dims of x [N, ..., D]; cos, sin float32 [N, half]. Rounds to bf16."""
    half = cos.shape[-1]
    while cos.dim() < x.dim():
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    a, b = x[..., -2 * half:].float().unflatten(-1, (half, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
    return torch.cat([x[..., :-2 * half], turned], -1)


@piece
def mix(x, pre_in, fn, base, scale, norm_w, eps: float, hc_eps: float):
    """Mixing coefficients of one sublayer and its normalised input (spec 2.2).

    x [N,4,D] bf16; pre_in float32 [N,4] (V4.1: the previous sublayer's `pre`) or None (V4: own `pre`).
    Returns input bf16 [N,D], pre [N,4], post [N,4], Sinkhorn logits [N,4,4].
    """
    hc = x.shape[1]
    f = x.flatten(1).float()
    r = torch.rsqrt(f.square().mean(-1, keepdim=True) + eps)
    m = (f @ fn.t()) * r
    pre = torch.sigmoid(m[:, :hc] * scale[0] + base[:hc]) + hc_eps
    post = 2 * torch.sigmoid(m[:, hc:2 * hc] * scale[1] + base[hc:2 * hc])
    comb = m[:, 2 * hc:] * scale[2] + base[2 * hc:]
    use = pre if pre_in is None else pre_in
    inp = (use.unsqueeze(-1) * x.float()).sum(1).bfloat16()
    return rms(inp, norm_w, eps), pre, post, comb.unflatten(1, (hc, hc))


@piece
def expand(y, x, post, comb):
    """out[k] = bf16(post[k] y + sum_j comb[j][k] x[j])."""
    f = x.float()
    out = post.unsqueeze(-1) * y.float().unsqueeze(1)
    for j in range(x.shape[1]):
        out = out + comb[:, j].unsqueeze(-1) * f[:, j:j + 1]
    return out.bfloat16()


@piece
def collapse(x, pre):
    return (pre.unsqueeze(-1) * x.float()).sum(1).bfloat16()


@piece
def head_merge(x, fn, base, scale, eps: float, hc_eps: float):
    """V4: learned collapse of the last stream (spec 2.3) -> bf16 [N,D]."""
    f = x.flatten(1).float()
    m = (f @ fn.t()) * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps)
    w = torch.sigmoid(m * scale + base) + hc_eps
    return (w.unsqueeze(-1) * x.float()).sum(1).bfloat16()


def _window_kv(x, wkv, kv_norm, cos, sin, v41: bool, eps: float, quant_on: bool):
    kv = rope(rms(F.linear(x, wkv), kv_norm, eps), cos, sin)
    if not quant_on:
        return kv
    if v41:
        return straight_through(kv, act_fp8, 32)
    plain = kv.shape[-1] - 2 * cos.shape[-1]  # V4 leaves the rotated dims in bf16
    return torch.cat([straight_through(kv[:, :plain], act_fp8, 64), kv[:, plain:]], -1)


@piece
def project_qkv(x, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads: int, v41: bool, block: int, eps: float, quant_on: bool):
    """x [N,D] -> q [N,H,512], kv [N,512] (roped, kv quantised), qr [N,q_lora] (spec 3.1)."""
    xq = _act(x, block, quant_on)
    qr = rms(F.linear(xq, wq_a), q_norm, eps)
    q = F.linear(_act(qr, block, quant_on), wq_b).unflatten(-1, (heads, -1))
    if not v41:
        f = q.float()
        q = (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps)).bfloat16()
    return rope(q, cos, sin), _window_kv(xq, wkv, kv_norm, cos, sin, v41, eps, quant_on), qr


@piece
def project_ring(main_x, wkv, kv_norm, cos, sin, v41: bool, block: int, eps: float, quant_on: bool):
    """Drafter ring entries from main_x [N,D] (spec 6.4) -> [N,512]."""
    return _window_kv(_act(main_x, block, quant_on), wkv, kv_norm, cos, sin, v41, eps, quant_on)


@piece
def project_out(att, wo_a, wo_b, cos, sin, groups: int, block: int, quant_on: bool):
    """Inverse rotation, grouped wo_a in bf16, wo_b (spec 3.1). att [N,H,512] -> [N,D]."""
    a = rope(att, cos, -sin).flatten(1).unflatten(1, (groups, -1)).transpose(0, 1)  # [G, N, per group]
    o = torch.bmm(a, wo_a.unflatten(0, (groups, -1)).transpose(1, 2))
    return F.linear(_act(o.transpose(0, 1).flatten(1), block, quant_on), wo_b)


@piece
def moe(x, gate_w, bias, forced, w13, w2, experts: int, top_k: int, route_scale: float, clamp: float, block: int, quant_on: bool):
    """Router, routed experts and the shared expert (spec 5). Returns y bf16 [N,D] and float32 expert counts [experts].

    Every expert runs on every row (small `inter`, two GEMMs in all); unpicked experts get weight 0 before w2.
    `forced` bool [N,experts] replaces the top-k pick (hash layers) or is None.
    """
    n = x.shape[0]
    s = torch.sqrt(F.softplus(x.float() @ gate_w.t()).clamp_min(1e-20))
    if forced is None:
        key = (s + bias).detach()
        # Rank by comparison instead of topk: fuses, and ties go to the lower index as in torch.topk's usual order.
        a, b = key.unsqueeze(2), key.unsqueeze(1)
        order = torch.arange(experts, device=x.device)
        ahead = (b > a) | ((b == a) & (order[None, None, :] < order[None, :, None]))
        chosen = ahead.sum(-1) < top_k
    else:
        chosen = forced
    w = torch.where(chosen, s, 0.0)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * route_scale
    w = torch.cat([w, torch.ones_like(w[:, :1])], 1)
    h = F.linear(_act(x, block, quant_on), w13).view(n, experts + 1, 2, -1)
    g, u = h[:, :, 0].float().clamp_max(clamp), h[:, :, 1].float().clamp(-clamp, clamp)
    a = (w.unsqueeze(-1) * (F.silu(g) * u)).bfloat16()
    y = F.linear(_act(a, block, quant_on).flatten(1), w2)
    return y, chosen.float().sum(0)


@piece
def moe_top1(x, gate_w, bias, w13, w2, experts: int, route_scale: float, clamp: float, block: int, quant_on: bool):
    """As `moe` with one expert per row and no weight normalisation (the reference's top-1 branch)."""
    n = x.shape[0]
    s = torch.sqrt(F.softplus(x.float() @ gate_w.t()).clamp_min(1e-20))
    chosen = F.one_hot((s + bias).detach().argmax(-1), experts).bool()
    w = torch.cat([torch.where(chosen, s, 0.0) * route_scale, torch.ones_like(s[:, :1])], 1)
    h = F.linear(_act(x, block, quant_on), w13).view(n, experts + 1, 2, -1)
    g, u = h[:, :, 0].float().clamp_max(clamp), h[:, :, 1].float().clamp(-clamp, clamp)
    a = (w.unsqueeze(-1) * (F.silu(g) * u)).bfloat16()
    return F.linear(_act(a, block, quant_on).flatten(1), w2), chosen.float().sum(0)


@piece
def index_query(qr, x, wq_b, w_proj, cos, sin, had, heads: int, block: int, quant_on: bool):
    """Index queries [N,heads,128] and head weights float32 [N,heads] (spec 3.4, 3.5). `had` [128,128] +-1 for V4, else None."""
    q = rope(F.linear(_act(qr, block, quant_on), wq_b).unflatten(-1, (heads, -1)), cos, sin)
    dim = q.shape[-1]
    if had is not None:
        q = (q.float() @ had * dim**-0.5).bfloat16()
    if quant_on:
        q = straight_through(q, act_fp4)
    return q, F.linear(x, w_proj).float() * (dim**-0.5 * heads**-0.5)


def _index_key(k, cos, sin, had, quant_on: bool):
    k = rope(k, cos, sin)
    if had is not None:
        k = (k.float() @ had * k.shape[-1]**-0.5).bfloat16()
    return straight_through(k, act_fp4) if quant_on else k


@piece
def compress_v41(x, wkv, wgate, norm, wk, k_norm, cos, sin, ratio: int, eps: float, quant_on: bool):
    """Owner layers of V4.1 (spec 3.5): entries [N/ratio,512] and index keys [N/ratio,128]. The key sees the latent before RoPE
    and gives it no gradient: the index loss trains the indexer alone."""
    if wgate is None:
        c = F.linear(x, wkv)
    else:
        f = x.float()
        kv = (f @ wkv.t()).unflatten(0, (-1, ratio))
        c = (torch.softmax((f @ wgate.t()).unflatten(0, (-1, ratio)), 1) * kv).sum(1).bfloat16()
    latent = rms(c, norm, eps)
    key = _index_key(rms(F.linear(latent.detach(), wk), k_norm, eps), cos, sin, None, quant_on)
    entry = rope(latent, cos, sin)
    return straight_through(entry, act_fp4_e4m3) if quant_on else entry, key


@piece
def compress_v4(x, wkv, wgate, ape, norm, cos, sin, first, had, ratio: int, eps: float, as_key: bool, quant_on: bool):
    """V4 compressor (spec 3.3, 3.4): x [N,D] -> [N/ratio, d]. `first` bool [N/ratio]: group 0 of its sequence.

    as_key: index keys (Hadamard and fp4) instead of attention entries.
    """
    f = x.float()
    kv = (f @ wkv.t()).unflatten(0, (-1, ratio))
    g = (f @ wgate.t()).unflatten(0, (-1, ratio)) + ape
    if ratio == 4:
        d = norm.shape[0]
        gone = first.view(-1, 1, 1)
        before_kv = torch.where(gone, 0.0, kv[..., :d].roll(1, 0))
        before_g = torch.where(gone, float("-inf"), g[..., :d].roll(1, 0))
        kv, g = torch.cat([before_kv, kv[..., d:]], 1), torch.cat([before_g, g[..., d:]], 1)
    c = (torch.softmax(g, 1) * kv).sum(1).bfloat16()
    e = rms(c, norm, eps)
    if as_key:
        return _index_key(e, cos, sin, had, quant_on)
    e = rope(e, cos, sin)
    if not quant_on:
        return e
    plain = e.shape[-1] - 2 * cos.shape[-1]
    return torch.cat([straight_through(e[:, :plain], act_fp8, 64), e[:, plain:]], -1)


@piece
def engram_write(x, rows, wkv, q_weight, k_weight, block: int, quant_on: bool):
    """Gated write of the looked-up n-gram rows [N, columns*dim] into the stream x [N,4,D] (spec 7.1)."""
    hc, d = q_weight.shape
    kv = F.linear(_act(rows, block, quant_on), wkv)
    key, value = kv[:, :hc * d].unflatten(1, (hc, d)).float(), kv[:, hc * d:].float()
    f = x.float()
    rstd = torch.rsqrt(f.square().mean(-1) + 1e-20) * torch.rsqrt(key.square().mean(-1) + 1e-20)
    dot = (f * q_weight * k_weight * key).sum(-1) * rstd * d**-0.5
    gate = torch.sigmoid(torch.sign(dot) * torch.sqrt(dot.abs().clamp_min(1e-6)))
    return (f + gate.unsqueeze(-1) * value.unsqueeze(1)).bfloat16()


@piece
def head_nll(h, norm_w, head, target, eps: float):
    """h bf16 [N,D] -> per-row cross entropy float32 [N] and argmax [N]."""
    z = F.linear(rms(h, norm_w, eps), head).float()
    lse = torch.logsumexp(z, -1)
    return lse - z.gather(1, target.unsqueeze(1)).squeeze(1), z.argmax(-1)


@piece
def tap_mean(x):
    return x.float().mean(1).bfloat16()
