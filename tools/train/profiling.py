"""Speed check of every phase shape: tokens/s, peak memory, top kernels. Also fills the compile cache."""

from __future__ import annotations

import time

import torch

import schedule

STEPS = 8


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
