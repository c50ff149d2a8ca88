"""DSpark drafter training on the frozen backbone (spec/model.md 6).

Every 128-token block of text gets 25 anchors, one at a random place in each 5-token stretch. An anchor's five draft rows, plus three idle
rows per block, fill 128 rows: the drafter runs on exactly as many rows as the backbone, so it reuses the backbone's compiled
stages. Ring entries of a block and its predecessor are the window keys, the draft rows of the same anchor the block keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

import attention as att
import stages
from model import Model
from pieces import piece


@dataclass
class Draft:
    hidden: torch.Tensor  # bf16 [rows, D], before the final norm
    bias_in: torch.Tensor  # int64 [rows]: previous token of each slot (Markov input)
    target: torch.Tensor  # int64 [rows]: true next token
    at: torch.Tensor  # int64 [rows]: flat position whose target distribution this slot predicts
    live: torch.Tensor  # bool [rows]
    counts: dict


def draw_anchors(b: int, t: int, window: int, size: int, device, generator=None) -> torch.Tensor:
    """int64 [blocks, window // size]: offset of p inside its block; distinct and ascending."""
    per = window // size
    jitter = torch.randint(0, size, (b * t // window, per), device=device, generator=generator)
    return torch.arange(per, device=device) * size + jitter


def run(model: Model, ids: torch.Tensor, taps: torch.Tensor, anchors: torch.Tensor) -> Draft:
    """ids int64 [B, T+1] (text and its successor), taps bf16 [B*T, taps*D] of the frozen backbone -> draft hidden states."""
    s, w = model.spec, model.w
    b, t = ids.shape[0], ids.shape[1] - 1
    win, size = s.window, s.draft_block
    blocks, per = anchors.shape
    dev = ids.device
    start = torch.arange(blocks, device=dev) * win
    row, base = start // t, start % t
    p = base[:, None] + anchors  # position in its row of text
    # Row layout per block: per*size draft rows, then idle rows that repeat the last anchor.
    slot = torch.arange(win, device=dev)
    which = (slot // size).clamp_max(per - 1)
    step = torch.where(slot < per * size, slot % size, 0)
    pos = p[:, which] + 1 + step  # [blocks, win] absolute position of each draft row
    live = (slot < per * size) & (pos + 1 <= t)
    flat_ids = ids.long()
    token = flat_ids[row[:, None].expand_as(pos), pos.clamp_max(t)]
    target = flat_ids[row[:, None].expand_as(pos), (pos + 1).clamp_max(t)]
    inputs = torch.where(step == 0, token, s.draft_noise)

    cos_all, sin_all = model.angles(False, t + win, 1)
    cos, sin = cos_all[pos.flatten()], sin_all[pos.flatten()]
    ring_cos, ring_sin = model.angles(False, t, b)
    wmask = att.window_mask(t, win, dev)[p[:, which]]  # the anchor's own window: positions p-127 .. p
    group = torch.where(slot < per * size, which, per)
    bmask = (group[:, None] == group[None, :]).unsqueeze(0)

    main_x = stages.rms(F.linear(stages._act(taps, s.block, model.quant), w["mtp.0.main_proj.weight"]), w["mtp.0.main_norm.weight"], s.eps)
    x, pre = model.spread(F.embedding(inputs.flatten(), w["embed.weight"]))
    counts: dict = {}
    for stage in range(s.draft_stages):
        m, a = f"mtp.{stage}", f"mtp.{stage}.attn"
        ring = stages.project_ring(main_x, w[f"{a}.wkv.weight"], w[f"{a}.kv_norm.weight"], ring_cos, ring_sin, s.v41, s.block, s.eps, model.quant)
        inp, pre, post, comb = model.mixed(f"{m}.hc_attn", x, pre, f"{m}.attn_norm.weight")
        q, kv, _ = model.qkv(a, inp, cos, sin)
        o, _ = att.attend(q, att.window_blocks(ring, win), kv.view(blocks, win, -1), w[f"{a}.attn_sink"], wmask, bmask, blocks, s.head_dim**-0.5)
        x = stages.expand(model.output(a, o, cos, sin), x, post, comb)
        inp, pre, post, comb = model.mixed(f"{m}.hc_ffn", x, pre, f"{m}.ffn_norm.weight")
        x = stages.expand(model.feed_forward(m, inp, inputs.flatten(), counts, s.draft_experts, s.draft_top_k), x, post, comb)
    hidden = model.merge(x, pre, f"mtp.{s.draft_stages - 1}.")
    at = (row[:, None] * t + pos.clamp_max(t - 1)).flatten()
    return Draft(hidden, token.flatten(), target.flatten(), at, live.expand_as(pos).flatten(), counts)


def _markov_names(model: Model) -> tuple[str, str, str]:
    s = model.spec
    p = f"mtp.{s.draft_stages - 1}."
    w1, w2 = ("embed", "head") if s.v41 else ("markov_w1", "markov_w2")
    return p, f"{p}markov_head.{w1}.weight", f"{p}markov_head.{w2}.weight"


@piece
def _draft_losses(h, norm_w, head, markov, w2, target, goal_z, weight, eps: float):
    """Cross entropy against the text, KL from the target's distribution, draft argmax, target argmax; all per row."""
    z = (F.linear(stages.rms(h, norm_w, eps), head) + F.linear(markov, w2)).float()
    logq = torch.log_softmax(z, -1)
    goal = torch.log_softmax(goal_z.float(), -1)
    ce = -logq.gather(1, target.unsqueeze(1)).squeeze(1)
    kl = (goal.exp() * (goal - logq)).sum(-1)
    return (ce * weight).sum(), (kl * weight).sum(), z.argmax(-1), goal_z.argmax(-1)


def losses(model: Model, d: Draft, goal_z: torch.Tensor):
    """goal_z: logits of the frozen target at d.at, any float dtype [rows, V].

    Returns (loss, report) with the mean teacher-forced accept length in the report: drafts that equal the target's argmax, counted up
    to the first mismatch or up to where the text itself leaves the target's argmax (then longer acceptance cannot be seen).
    """
    s, w = model.spec, model.w
    prefix, n1, n2 = _markov_names(model)
    size = s.draft_block
    per = s.window // size
    pick = lambda v: v.view(-1, s.window, *v.shape[1:])[:, :per * size].reshape(-1, size, *v.shape[1:])
    decay = 0.85 ** torch.arange(s.window, device=d.live.device).remainder(size).float()
    weight = d.live.float() * decay.repeat(d.live.numel() // s.window)
    weight = weight / weight.sum().clamp_min(1)
    markov = F.embedding(d.bias_in, w[n1])
    ce, kl, draft, goal = _draft_losses(d.hidden, w[f"{prefix}norm.weight"], w["head.weight"], markov, w[n2], d.target, goal_z, weight, s.eps)

    hit = pick(draft == goal)
    follows = pick(draft == d.target)
    live = pick(d.live)
    before = lambda v: F.pad(v.float().cumprod(1)[:, :-1], (1, 0), value=1.0)
    alive = before(hit & follows) * live
    conf = torch.cat([d.hidden, markov], -1).detach().float() @ w[f"{prefix}confidence_head.proj.weight"].t()
    bce = F.binary_cross_entropy_with_logits(pick(conf.squeeze(1)), hit.float(), reduction="none")
    conf_loss = (bce * alive).sum() / alive.sum().clamp_min(1)
    with torch.no_grad():
        # Anchors whose text follows the target's argmax throughout are what greedy decoding meets.
        greedy = (pick(goal == d.target) | ~live).all(1) & live.all(1)
        accepted = (hit & live).float().cumprod(1).sum(1)
        first = (hit[:, 0] & live[:, 0]).float().sum() / live[:, 0].float().sum().clamp_min(1)
        report = {"draft_ce": ce.detach(), "draft_kl": kl.detach(), "draft_conf": conf_loss.detach(), "draft_first": first,
                  "accept_greedy_text": (accepted * greedy).sum() / greedy.sum().clamp_min(1), "greedy_share": greedy.float().mean(),
                  "accept_lower": ((hit & live).float() * before(hit & follows)).sum() / live[:, 0].float().sum().clamp_min(1)}
    return 0.3 * ce + 0.7 * kl + 0.2 * conf_loss, report


@torch.no_grad()
def target_logits(model: Model, hidden: torch.Tensor, d: Draft) -> torch.Tensor:
    """bf16 logits of the frozen target for every draft row, from the backbone's hidden states [B*T, D]."""
    return F.linear(stages.rms(hidden[d.at], model.w["norm.weight"], model.spec.eps), model.w["head.weight"])
