"""Hyper-connections and the block of both generations (spec/model.md section 2)."""

from __future__ import annotations

import torch

from attention import Attention
from config import BlockSpec, ModelSpec
from engram import EngramLayer
from moe import Moe
from numerics import Arithmetic


class Mixer:
    """One sublayer's mixing coefficients: fn F32 [24, 4D], base F32 [24], scale F32 [3]."""

    def __init__(self, ck, stem: str, spec: ModelSpec):
        self.fn, self.base, self.scale = (ck.get(f"{stem}_{part}") for part in ("fn", "base", "scale"))
        self.spec = spec

    def forward(self, x):
        """x [T, 4, D] -> pre [T, 4], post [T, 4], comb [T, 4, 4], in double, rounded to fp32 at the end (2.2)."""
        n, eps = self.spec.hc_mult, self.spec.hc_eps
        m, base, scale = raw_mix(x, self.fn, self.spec.eps), self.base.double(), self.scale.double()
        pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        c = (m[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(1, (n, n))
        c = torch.softmax(c, dim=-1) + eps
        c = c / (c.sum(-2, keepdim=True) + eps)
        for _ in range(self.spec.hc_iters - 1):
            c = c / (c.sum(-1, keepdim=True) + eps)
            c = c / (c.sum(-2, keepdim=True) + eps)
        return pre.float(), post.float(), c.float()


def raw_mix(x, fn, eps):
    """fn (F32 [rows, 4D]) applied to the flattened stream, scaled by ONE rms over all 4D values; in double."""
    f = x.flatten(1).double()
    return f @ fn.double().T / (f.square().mean(-1, keepdim=True) + eps).sqrt()


def collapse(ar: Arithmetic, x, w):
    """[T, 4, D], [T, 4] -> [T, D]"""
    return ar.act((w.double().unsqueeze(-1) * x.double()).sum(1).float())


def expand(ar: Arithmetic, y, residual, post, comb):
    """y [T, D], residual [T, 4, D] -> [T, 4, D]; comb is contracted over its FIRST index."""
    mixed = (comb.double().unsqueeze(-1) * residual.double().unsqueeze(2)).sum(1)
    return ar.act((post.double().unsqueeze(-1) * y.double().unsqueeze(1) + mixed).float())


class Block:
    """A backbone layer or a draft stage; the draft stage passes its own attention function."""

    def __init__(self, ck, spec: ModelSpec, block: BlockSpec, ar: Arithmetic, options):
        self.spec, self.block, self.ar, self.options = spec, block, ar, options
        p = block.prefix
        self.hc_attn, self.hc_ffn = Mixer(ck, p + ".hc_attn", spec), Mixer(ck, p + ".hc_ffn", spec)
        self.attn_norm, self.ffn_norm = ck.get(p + ".attn_norm.weight"), ck.get(p + ".ffn_norm.weight")
        self.attention = Attention(ck, spec, block, ar, options)
        self.moe = Moe(ck, spec, block, ar, options)
        self.engram = EngramLayer(ck, p + ".engram") if block.engram >= 0 else None

    def sublayer(self, name, x, carried, mixer, norm, fn):
        """One mHC sublayer. carried: the previous sublayer's `pre` (V4.1 collapses with it). -> (x, this sublayer's pre)."""
        rec, b = self.options.record, self.block
        pre, post, comb = mixer.forward(x)
        if self.options.variant == "transposed_comb":
            comb = comb.transpose(1, 2)
        own = not self.spec.v41 or self.options.variant == "own_pre"
        collapsed = collapse(self.ar, x, pre if own else carried)
        inner = self.ar.rms_norm(collapsed, norm, self.spec.eps)
        y = fn(inner)
        out = expand(self.ar, y, x, post, comb)
        for part, value in (
            ("x", x), ("carried", carried), ("pre", pre), ("post", post), ("comb", comb), ("collapsed", collapsed),
            ("inner", inner), ("y", y), ("out", out),
        ):  # fmt: skip
            if value is not None:
                rec(b, f"mix_{name}.{part}", value)
        return out, pre

    def forward(self, x, carried, ids, attend):
        """x [T, 4, D]; attend: collapsed-and-normed [T, D] -> y [T, D]. Returns (x, pre of the FFN sublayer)."""
        x, pre = self.sublayer("attn", x, carried, self.hc_attn, self.attn_norm, attend)
        return self.sublayer("ffn", x, pre, self.hc_ffn, self.ffn_norm, lambda h: self.moe.forward(h, ids))
