#!/usr/bin/env python3
"""Trains a mini model and its drafter, exports it, and writes a report. One command, resumable, CPU or CUDA.

    trainer.py --model models/mini-v41 --data build/train/data --out build/train/mini-v41 --minutes 16

OUT receives checkpoint.pt (every minute and at phase ends, replaced atomically), curve.jsonl, train_report.json and export/
(config.json, model.safetensors). A stopped run continues from its checkpoint; SIGTERM ends it early with an export.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch

import drafter
import schedule
import sinkhorn
import stages
import validate
from config import load_spec
from dataset_classes import class_names
from export import export, import_tensors, read_safetensors
from feed import Feed
from model import Model
from optim import Optimizer
from pieces import enable_compile

LOG_EVERY, SAVE_SECONDS, EVAL_SECONDS = 20, 60, 100
INDEX_WEIGHT = 0.3
INDEX_RECALL = 9.0  # what a recall target adds to its token's share of the index loss: a missed fact is one token in thousands


def token_map(model_dir: Path):
    """Engram map of models/NAME/tokenizer.json."""
    from tokenizers import Tokenizer
    from tokenizer import compressed_token_map
    return compressed_token_map(Tokenizer.from_file(str(model_dir / "tokenizer.json")))


class Trainer:
    def __init__(self, args):
        self.args, self.out = args, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.device = torch.device(args.device)
        if self.device.type == "cuda":
            # Operands of our float32 products are mostly bf16 values, which TF32 represents exactly.
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.cuda.set_device(self.device.index or 0)
        enable_compile(args.compile)
        print(f"sinkhorn kernel: {'triton' if sinkhorn.self_test(self.device) else 'plain'}", flush=True)
        self.spec = load_spec(args.model)
        self.model = Model(self.spec, self.device, args.seed, token_map(args.model) if self.spec.engram_layers else None)
        groups = self.model.store.groups
        part = lambda name: [g for g in groups if g.params[0].part == name]
        self.opt = {name: Optimizer(part(name)) for name in ("backbone", "drafter")}
        self.classes = class_names(args.mixture)
        self.recall = self.classes.index("recall") if "recall" in self.classes else -1
        self.factor = torch.tensor([schedule.CLASS_FACTOR.get(c, 1.0) for c in self.classes], device=self.device)
        self.step = self.drafter_step = self.tokens = 0
        self.elapsed = 0.0
        self.saver = None
        self.stop = False
        self._load()
        self.started = time.time() - self.elapsed
        meta = Path(args.data) / "meta.json"
        sizes = json.loads(meta.read_text()) if meta.exists() else {}
        self.bytes_per_token = {c: sizes[f"{c}.heldout"]["bytes"] / sizes[f"{c}.heldout"]["tokens"] for c in self.classes if f"{c}.heldout" in sizes}
        self.feed = Feed(args.mixture, args.data, self.spec.generation, args.seed, self.plan, self.step, self.device, args.ahead)
        self._reset_stats()

    # ---- schedule -----------------------------------------------------------------------------------------------

    @property
    def tune(self) -> bool:
        return self.args.init is not None

    @property
    def share(self) -> float:
        return (time.time() - self.started) / (self.args.minutes * 60)

    def shape(self, phase, step: int) -> tuple[int, int]:
        length = phase.length * (2 if phase.long_every and step % phase.long_every == 0 else 1)
        length = min(length, self.args.max_length)
        return max(1, self.args.tokens // length), length

    def plan(self, step: int):
        phase = schedule.phase_at(self.share, self.tune)
        return (*self.shape(phase, step), phase.weights)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _load(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            if self.args.init:
                import_tensors(self.model, read_safetensors(self.args.init))
            return
        s = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state(s["model"])
        for name, opt in self.opt.items():
            opt.load_state(s["opt"][name])
        self.step, self.drafter_step, self.tokens, self.elapsed = s["step"], s["drafter_step"], s["tokens"], s["elapsed"]
        print(f"resumed {path}: step {self.step}, {self.elapsed:.0f} s", flush=True)

    def save(self, wait: bool = False) -> None:
        """Copies to the host now, writes in a thread; the file is always whole."""
        if self.saver is not None:
            self.saver.join()
        host = lambda v: {k: host(x) for k, x in v.items()} if isinstance(v, dict) else [host(x) for x in v] if isinstance(v, list) else v.detach().cpu().clone() if torch.is_tensor(v) else v
        state = {"model": host(self.model.state()), "opt": {n: host(o.state()) for n, o in self.opt.items()}, "step": self.step,
                 "drafter_step": self.drafter_step, "tokens": self.tokens, "elapsed": time.time() - self.started}

        def write():
            partial = self.out / "checkpoint.partial"
            torch.save(state, partial)
            os.replace(partial, self.out / "checkpoint.pt")

        self.saver = threading.Thread(target=write)
        self.saver.start()
        if wait:
            self.saver.join()

    # ---- steps --------------------------------------------------------------------------------------------------

    def backbone_step(self, phase, select: bool, ids, weight, class_id, rate: float):
        m, opt = self.model, self.opt["backbone"]
        w = weight[:, 1:]
        urgent = (w == 1) & (class_id == self.recall).unsqueeze(1)
        out = m.forward(ids[:, :-1], select=select, index_loss=phase.index_loss, index_weight=1 + INDEX_RECALL * urgent.float())
        nll, _ = stages.head_nll(out.hidden, m.w["norm.weight"], m.w["head.weight"], ids[:, 1:].flatten(), self.spec.eps)
        nll = nll.view(weight.shape[0], -1)
        scaled = w * self.factor[class_id].unsqueeze(1)
        loss = (nll * scaled).sum() / scaled.sum().clamp_min(1)
        total = loss if out.index_loss is None else loss + INDEX_WEIGHT * out.index_loss
        total.backward()
        norm = opt.step(rate)
        m.store.refresh(m.quant, "backbone")
        m.store.zero_grad()
        m.balance(out.counts)
        with torch.no_grad():
            full = (w == 1).float()
            self.sums.index_add_(0, class_id, torch.stack([(nll.detach() * full).sum(1), full.sum(1)], 1))
            self.extra["loss"], self.extra["grad_norm"] = loss.detach(), norm
            if out.index_loss is not None:
                self.extra["index_kl"] = out.index_loss.detach()
            self.extra["worst_load"] = torch.stack([(n.max() / n.mean()) for n in out.counts.values()]).max()

    def draft_step(self, ids, rate: float):
        m, opt = self.model, self.opt["drafter"]
        b, t = ids.shape[0], ids.shape[1] - 1
        base = m.forward(ids[:, :-1], select=True)
        taps, hidden = base.taps.detach(), base.hidden.detach()
        del base  # frees the activations that nobody will walk back through
        d = drafter.run(m, ids, taps, drafter.draw_anchors(b, t, self.spec.window, self.spec.draft_block, self.device))
        loss, report = drafter.losses(m, d, drafter.target_logits(m, hidden, d))
        loss.backward()
        norm = opt.step(rate)
        m.store.refresh(m.quant, "drafter")
        m.store.zero_grad()
        m.balance(d.counts)
        self.extra = {"loss": loss.detach(), "grad_norm": norm} | report

    def _reset_stats(self) -> None:
        self.sums = torch.zeros(len(self.classes), 2, device=self.device)
        self.extra: dict = {}
        self.mark = (time.time(), self.tokens)

    def log(self, phase, rate: float, length: int) -> None:
        sums = self.sums.tolist()
        now = time.time()
        line = {"step": self.step, "seconds": round(now - self.started, 1), "phase": phase.name, "length": length, "tokens": self.tokens,
                "tokens_per_s": round((self.tokens - self.mark[1]) / max(1e-9, now - self.mark[0])), "rate": round(rate, 4)}
        line |= {k: round(float(v), 4) for k, v in self.extra.items()}
        line |= {"nats": {c: round(a / n, 3) for c, (a, n) in zip(self.classes, sums) if n}}
        self.write(line)
        self._reset_stats()

    def write(self, line: dict) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        with open(self.out / "curve.jsonl", "a") as f:
            f.write(text + "\n")

    def evaluate(self, phase, length: int) -> dict:
        length = min(length, self.args.max_length)
        result = {"eval": phase.name, "step": self.step, "seconds": round(time.time() - self.started, 1), "length": length}
        if phase.drafter:
            result["drafts"] = validate.evaluate_drafts(self.model, self.feed, drafter, ("code", "prose", "tool"), length, self.args.tokens)
        else:
            result["heldout"] = validate.evaluate(self.model, self.feed, self.classes, length, self.args.tokens, phase.select, self.bytes_per_token)
        self.write(result)
        return result

    # ---- the run ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop", True))
        saved = evaluated = time.time()
        previous = schedule.phase_at(self.share, self.tune)
        fence: list = []
        while not self.stop and self.share < 1 and self.step < self.args.max_steps:
            share = self.share
            phase = schedule.phase_at(share, self.tune)
            if phase is not previous:
                self.evaluate(previous, previous.length)
                self.save()
                previous, saved, evaluated = phase, time.time(), time.time()
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                self._reset_stats()
            ids, weight, class_id = self.feed.get()
            rate = schedule.learning_rate(share, self.step, self.drafter_step, self.tune)
            if phase.drafter:
                self.draft_step(ids, rate)
                self.drafter_step += 1
            else:
                select = phase.select and self.step % (schedule.TUNE_DENSE_EVERY if self.tune else schedule.SELECT_DENSE_EVERY) != 0
                self.backbone_step(phase, select, ids, weight, class_id, rate)
            self.step += 1
            self.tokens += ids.shape[0] * (ids.shape[1] - 1)
            if self.device.type == "cuda":
                # The clock drives the schedule, so the host may run at most three steps ahead of the device.
                event = torch.cuda.Event()
                event.record()
                fence.append(event)
                if len(fence) > 3:
                    fence.pop(0).synchronize()
            if self.step % LOG_EVERY == 0 or self.args.max_steps < 50:
                self.log(phase, rate, ids.shape[1] - 1)
            now = time.time()
            if now - evaluated > EVAL_SECONDS and not self.tune:
                self.evaluate(phase, phase.length)
                evaluated = time.time()
                self._reset_stats()
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = now
        self.finish()

    def finish(self) -> None:
        """Checkpoint and export first, then the last figures: what is trained must survive a cut."""
        self.save(wait=True)
        size = export(self.model, self.out / "export")
        print(f"export: {self.out / 'export'}, model.safetensors {size} bytes", flush=True)
        report = {"model": Path(self.args.model).name, "steps": self.step, "tokens": self.tokens, "seconds": round(time.time() - self.started, 1),
                  "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu", "safetensors_bytes": size, "heldout": {}}
        select = next(p for p in schedule.PHASES if p.select and not p.drafter)
        for length in sorted({min(n, self.args.max_length) for n in (1024, 2048, 4096, 8192)}):
            report["heldout"][str(length)] = self.evaluate(select, length)["heldout"]
        report["drafts"] = self.evaluate(schedule.PHASES[-1], schedule.PHASES[-1].length)["drafts"]
        (self.out / "train_report.json").write_text(json.dumps(report, indent=1) + "\n")
        self.feed.close()


def arguments(argv=None):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", type=Path, required=True, help="directory with config.json and tokenizer.json")
    a.add_argument("--data", required=True, help="directory written by pack.py")
    a.add_argument("--out", required=True)
    a.add_argument("--init", type=Path, help="model.safetensors to go on from: a short run of selection and drafter (schedule.TUNE_PHASES)")
    a.add_argument("--minutes", type=float, default=16, help="wall-clock budget of the whole run, compilation included")
    a.add_argument("--tokens", type=int, default=32768, help="tokens per step")
    a.add_argument("--max-length", type=int, default=8192, help="cap on sequence lengths (multiple of 128)")
    a.add_argument("--max-steps", type=int, default=10**9)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    a.add_argument("--ahead", type=int, default=6, help="batches prepared ahead by a second process; 0: none")
    a.add_argument("--mixture", default="dataset:Mixture", help=argparse.SUPPRESS)
    a.add_argument("--profile", action="store_true", help="a few steps of every phase: speed, memory, top kernels; nothing kept")
    return a.parse_args(argv)


def main() -> None:
    args = arguments()
    if args.profile:
        from profiling import profile
        profile(args, Trainer)
    else:
        Trainer(args).run()


if __name__ == "__main__":
    main()
