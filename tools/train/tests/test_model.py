"""Gradients against autograd of the plain formulas, export and import, both generations, resume."""

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
import attention as att  # noqa: E402
import blend  # noqa: E402
import drafter  # noqa: E402
import export  # noqa: E402
import quant  # noqa: E402
import sinkhorn  # noqa: E402
from config import load_spec  # noqa: E402
from model import Model  # noqa: E402

MODELS = Path(__file__).resolve().parents[3] / "models"


def make(name: str, seed: int = 1) -> Model:
    spec = load_spec(MODELS / name)
    fake = [i % spec.engram_compressed_vocab for i in range(spec.vocab)] if spec.engram_layers else None
    return Model(spec, "cpu", seed, fake)


def test_e2m1_ties():
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -2.5, 0.2501, 5.01])
    assert quant.round_e2m1(x).tolist() == [0, 1, 1, 2, 2, 4, 4, -2, 0.5, 6]


def test_sinkhorn_gradient():
    raw = torch.randn(7, 4, 4, dtype=torch.float64, requires_grad=True)

    def plain(r):
        c = torch.softmax(r, -1) + 1e-6
        c = c / (c.sum(-2, keepdim=True) + 1e-6)
        for _ in range(19):
            c = c / (c.sum(-1, keepdim=True) + 1e-6)
            c = c / (c.sum(-2, keepdim=True) + 1e-6)
        return c

    g = torch.randn(7, 4, 4, dtype=torch.float64)
    want, = torch.autograd.grad((plain(raw) * g).sum(), raw)
    c, soft, d = sinkhorn._forward_plain(raw.detach(), 20, 1e-6)
    assert torch.allclose(c, plain(raw), atol=1e-12)
    assert torch.allclose(sinkhorn._backward_plain(g, c, soft, d), want, atol=1e-10)


def test_attention_gradient():
    """float32 tensors through the same code as bf16 training, against autograd of a plain softmax."""
    torch.manual_seed(0)
    b, t, h, d, ratio = 2, 256, 2, 16, 2
    q, kv = (torch.randn(b * t, *s, requires_grad=True) for s in ((h, d), (d,)))
    comp, sink = torch.randn(b, t // ratio, d, requires_grad=True), torch.randn(h, requires_grad=True)
    wmask = att.window_mask(t, 128, "cpu").unsqueeze(0)
    pos = torch.arange(t)[:, None]
    cmask = (torch.arange(t // ratio)[None] < (pos + 1) // ratio).unsqueeze(0)
    g = torch.randn(b * t, h, d)

    out, mass = att.attend(q, att.window_blocks(kv, 128), comp, sink, wmask, cmask, b, 0.3, True)
    got = torch.autograd.grad((out * g).sum(), (q, kv, comp, sink))

    keys = torch.cat([kv.view(b, t, d), comp], 1)
    window = (torch.arange(t)[None] <= pos) & (torch.arange(t)[None] > pos - 128)
    mask = torch.cat([window, cmask[0]], 1)
    s = torch.einsum("bthd,bkd->bthk", q.view(b, t, h, d), keys) * 0.3
    s = s.masked_fill(~mask[None, :, None], float("-inf"))
    p = torch.softmax(torch.cat([s, sink.expand(b, t, h).unsqueeze(-1)], -1), -1)[..., :-1]
    want_out = torch.einsum("bthk,bkd->bthd", p, keys).reshape(b * t, h, d)
    want = torch.autograd.grad((want_out * g).sum(), (q, kv, comp, sink))
    assert torch.allclose(out, want_out, atol=1e-5)
    assert torch.allclose(mass, p[..., t:].sum(2), atol=1e-5)
    for a, w in zip(got, want):
        assert torch.allclose(a, w, atol=1e-4), (a - w).abs().max()


def test_index_gradient():
    torch.manual_seed(0)
    b, t, h, d, c = 2, 128, 3, 8, 64
    qi, keys, w = torch.randn(b * t, h, d, requires_grad=True), torch.randn(b, c, d, requires_grad=True), torch.randn(b * t, h, requires_grad=True)
    mask = (torch.arange(c)[None] < (torch.arange(t)[:, None] + 1) // 2).expand(b, t, c)
    mass = torch.rand(b, t, c) * mask
    got = torch.autograd.grad(att.index_kl(att.index_scores(qi, keys, w), mass, mask), (qi, keys, w))
    s = torch.einsum("bthd,bcd->bthc", qi.view(b, t, h, d), keys).relu().mul(w.view(b, t, h, 1)).sum(2)
    live = mask.any(-1)
    logq = torch.log_softmax(s.masked_fill(~mask, -1e30), -1)
    p = mass / mass.sum(-1, keepdim=True).clamp_min(1e-9)
    kl = torch.where(mask & (p > 0), p * (p.clamp_min(1e-30).log() - logq), 0.0).sum(-1)[live].sum() / (b * t)
    want = torch.autograd.grad(kl, (qi, keys, w))
    for a, v in zip(got, want):
        assert torch.allclose(a, v, atol=1e-5)


def test_index_weight():
    """Weight 2 on a token counts it like two tokens; equal weights change nothing."""
    torch.manual_seed(1)
    scores, mass = torch.randn(1, 4, 8), torch.rand(1, 4, 8)
    mask = torch.ones(1, 4, 8, dtype=torch.bool)
    plain = att.index_kl(scores, mass, mask)
    assert torch.allclose(att.index_kl(scores, mass, mask, torch.full((1, 4), 3.0)), plain)
    rows = torch.stack([att.index_kl(scores[:, i : i + 1], mass[:, i : i + 1], mask[:, :1]) for i in range(4)])
    weight = torch.tensor([[1.0, 2.0, 1.0, 1.0]])
    got = scores.clone().requires_grad_()
    want = scores.clone().requires_grad_()
    one = att.index_kl(got, mass, mask, weight)
    assert torch.allclose(one, (rows * weight[0]).sum() / 5)
    twice = [0, 1, 1, 2, 3]
    same, = torch.autograd.grad(att.index_kl(want[:, twice], mass[:, twice], mask[:, twice]), want)
    assert torch.allclose(torch.autograd.grad(one, got)[0], same, atol=1e-6)


def test_blend():
    """Only the drafter moves, and by its share."""
    first, second = make("mini-v41", 1), make("mini-v41", 2)
    before = [g.master.clone() for g in first.store.groups]
    blend.blend(first, second, 0.25)
    for group, old, other in zip(first.store.groups, before, second.store.groups):
        moved = group.params[0].part == "drafter"
        assert torch.allclose(group.master, torch.lerp(old, other.master, 0.25) if moved else old)


@pytest.mark.parametrize("name", ["mini-v41", "mini-v4"])
def test_export_import_same_logits(name, tmp_path):
    model = make(name, 3)
    for bias in model.bias.values():
        bias.normal_(0, 0.01)
    size = export.export(model, tmp_path)
    extra = sum(p.stat().st_size for p in (MODELS / name).iterdir() if p.name == "tokenizer.json")
    assert size + extra < 16 * 2**20 - 20000, "the model directory must stay within 16 MiB"
    again = make(name, 4)
    export.import_tensors(again, export.read_safetensors(tmp_path / "model.safetensors"))
    ids = torch.randint(20, 2560, (1, 256))
    with torch.no_grad():
        a, b = (m.logits(m.forward(ids, select=True).hidden) for m in (model, again))
    assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["mini-v41", "mini-v4"])
def test_causal(name):
    """A changed token must not move any earlier row, in the backbone, the Engram and the compressors."""
    model = make(name)
    ids = torch.randint(20, 2560, (1, 256))
    other = ids.clone()
    other[0, 200] = (ids[0, 200] + 7) % 2560
    with torch.no_grad():
        a, b = (model.forward(i, select=True).hidden for i in (ids, other))
    assert torch.equal(a[:200], b[:200]) and not torch.equal(a[200], b[200])


@pytest.mark.parametrize("name", ["mini-v41", "mini-v4"])
def test_drafts_see_only_their_past(name):
    """Draft rows depend on taps up to p and on the anchor only."""
    model = make(name)
    ids = torch.randint(20, 2560, (1, 257))
    taps = torch.randn(256, len(model.spec.draft_taps) * model.spec.dim).bfloat16()
    anchors = torch.full((2, 25), 0) + torch.arange(25) * 5
    with torch.no_grad():
        a = drafter.run(model, ids, taps, anchors)
        changed, other = taps.clone(), ids.clone()
        changed[61:] += 1  # the 13th anchor of block 0 sits at p = 60
        other[0, 62:] = 20
        b = drafter.run(model, other, changed, anchors)
    rows = slice(12 * 5, 13 * 5)
    assert torch.equal(a.hidden[rows], b.hidden[rows])
    assert not torch.equal(a.hidden[13 * 5:14 * 5], b.hidden[13 * 5:14 * 5])
