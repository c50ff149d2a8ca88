"""Speed check of every phase shape: tokens/s, peak memory, top kernels. Also fills the compile cache."""

from __future__ import annotations

import time

import torch

import schedule
import stages
from pieces import enable_compile

STEPS = 8


def _gradients(trainer, batch) -> tuple[float, list[torch.Tensor]]:
    m, ids = trainer.model, batch[0]
    out = m.forward(ids[:, :-1], index_loss=True)
    nll, _ = stages.head_nll(out.hidden, m.w["norm.weight"], m.w["head.weight"], ids[:, 1:].flatten(), m.spec.eps)
    (nll.mean() + out.index_loss).backward()
    grads = [g.grad.float().clone() for g in m.store.groups]
    m.store.zero_grad()
    return nll.mean().item(), grads


def check_compiled(trainer) -> None:
    """Loss and gradients of the compiled stages against the plain ones on the same batch and weights.

    Rounding differs (a compiled stage keeps some intermediates in float32), so agreement is a matter of a few percent.
    """
    length = min(1024, trainer.args.max_length)
    batch = trainer.feed.to_device(trainer.feed.local.batch(max(1, trainer.args.tokens // length), length, schedule.PHASES[1].weights, 0))
    enable_compile(False)
    plain, want = _gradients(trainer, batch)
    enable_compile(True)
    fast, got = _gradients(trainer, batch)
    print(f"CHECK loss plain {plain:.5f} compiled {fast:.5f}", flush=True)
    for group, a, b in zip(trainer.model.store.groups, want, got):
        error = ((a - b).norm() / a.norm().clamp_min(1e-12)).item()
        if error > 0.05 and a.norm() > 0:
            print(f"CHECK gradient of {group.params[0].name} ({len(group.params)}): relative difference {error:.3f}, norm {a.norm():.2e}", flush=True)


def _run(trainer, phase, length: int, steps: int) -> None:
    rows = max(1, trainer.args.tokens // length)
    for i in range(steps):
        batch = trainer.feed.to_device(trainer.feed.local.batch(rows, length, phase.weights, i))
        if phase.drafter:
            trainer.draft_step(batch[0], 0.1)
        else:
            trainer.backbone_step(phase, phase.select, *batch, 0.1)


def profile(args, make) -> None:
    """Runs each phase at its length (and the doubled rows of long phases); `make` builds a Trainer."""
    trainer = make(args)
    cuda = trainer.device.type == "cuda"
    sync = torch.cuda.synchronize if cuda else lambda: None
    seen = set()
    begin = time.time()
    if args.compile:
        check_compiled(trainer)
    for phase in schedule.PHASES:
        for length in {min(phase.length, args.max_length), min(phase.length * (2 if phase.long_every else 1), args.max_length)}:
            key = (length, phase.select, phase.index_loss, phase.drafter)
            if key in seen:
                continue
            seen.add(key)
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            t0 = time.time()
            _run(trainer, phase, length, 2)
            sync()
            t1 = time.time()
            _run(trainer, phase, length, STEPS)
            enqueued = time.time()
            sync()
            t2 = time.time()
            tokens = STEPS * max(1, args.tokens // length) * length
            peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
            print(f"PROFILE {phase.name} T={length}: warm-up {t1 - t0:.1f} s, {tokens / (t2 - t1):.0f} tokens/s, {(t2 - t1) / STEPS * 1e3:.0f} ms/step "
                  f"(host {(enqueued - t1) / STEPS * 1e3:.0f}), peak {peak:.1f} GiB, loss {float(trainer.extra['loss']):.3f}", flush=True)
    if cuda:
        phase = next(p for p in schedule.PHASES if p.name == "mid")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as p:
            _run(trainer, phase, min(phase.length, args.max_length), 2)
            sync()
        print(p.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=70), flush=True)
    print(f"PROFILE total {time.time() - begin:.0f} s", flush=True)
    trainer.feed.close()
