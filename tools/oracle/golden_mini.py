"""Logits and drafts of a trained mini model over real text (tests/data/mini_*_logits.safetensors)."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from golden_stages import save
from model import Model
from numerics import BF16

SAMPLES = 64  # positions with full logits, and draft anchors
TOP = 8


def token_ids(directory: Path, positions: int, text: Path | None) -> list[int]:
    """BOS, then the tokens of `text`, or of this repository's own pages and headers until there are enough."""
    from tokenizers import Tokenizer

    root = Path(__file__).resolve().parents[2]
    sources = [text] if text else [root / "README.md", *sorted(root.glob("docs/*.md")), *sorted(root.glob("src/*/*.h"))]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = [0]
    for source in sources:
        if source.exists():
            ids += tokenizer.encode(source.read_text(), add_special_tokens=False).ids
        if len(ids) > positions:
            return ids[: positions + 1]
    raise SystemExit(f"the text gives {len(ids)} tokens, {positions + 1} are needed; pass a longer --text")


def write(directory: Path, positions: int, text: Path | None, out: Path) -> None:
    """One prefill of `positions` tokens; then a draft block at SAMPLES positions, each from the taps up to there."""
    ids = token_ids(directory, positions, text)
    started = time.monotonic()
    model = Model.load(directory)
    seq = model.new_sequence()
    logits = model.forward(ids[:positions], seq)
    taps = seq.taps
    print(f"prefill of {positions}: {time.monotonic() - started:.1f} s")
    best = logits.topk(TOP, dim=1)
    sample = torch.linspace(0, positions - 1, SAMPLES).round().long()
    t = {
        "token_ids": torch.tensor(ids), "argmax": best.indices[:, 0], "top_ids": best.indices, "top_logits": best.values,
        "max_logit": best.values[:, 0], "runner_up_logit": best.values[:, 1], "logit_rms": logits.square().mean(1).sqrt(),
        "sample_positions": sample, "sample_logits": logits[sample].to(BF16),
    }  # fmt: skip
    if model.drafter:
        t |= _drafts(model, seq, taps, ids, sample)
    name = "mini_v41" if model.spec.v41 else "mini_v4"
    save(out / f"{name}_logits.safetensors", t)
    print(f"all: {time.monotonic() - started:.1f} s")


def _drafts(model: Model, seq, taps, ids: list[int], sample: torch.Tensor) -> dict[str, torch.Tensor]:
    """anchor i = token_ids[sample_positions[i] + 1], drafted with positions 0..sample_positions[i] committed."""
    model.drafter.commit(seq, taps)
    full = [cache.window for cache in seq.drafts]
    found, hits = [], 0
    for p in sample.tolist():
        for cache, window in zip(seq.drafts, full):
            cache.window = window[: p + 1]
        found.append(model.drafter.draft(seq, ids[p + 1]))
        if p + 2 < len(ids):
            hits += int(found[-1].ids[0]) == ids[p + 2]
    print(f"first draft equals the text's next token at {hits} of {len(found)} anchors")
    return {
        "draft_ids": torch.stack([d.ids for d in found]),
        "draft_confidence": torch.stack([d.confidence for d in found]),
        "draft_max_logit": torch.stack([d.logits.amax(1) for d in found]),
    }
