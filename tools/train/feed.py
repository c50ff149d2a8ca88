"""Batches from the Mixture in a process of its own, a few steps ahead of training."""

from __future__ import annotations

import importlib
import multiprocessing as mp

import torch


def _mixture(where: str, data: str, generation: str, seed: int):
    module, name = where.split(":")
    return getattr(importlib.import_module(module), name)(data, generation, seed)


def _serve(where, data, generation, seed, asked, done) -> None:
    mixture = _mixture(where, data, generation, seed)
    while (job := asked.get()) is not None:
        done.put(mixture.batch(*job))


class Feed:
    """`plan(step)` -> (rows, length, class weights) decides what to ask for; `get` returns the next batch on the device.

    A batch asked for before the plan changed is still delivered: its own shape says which phase it belongs to.
    """

    def __init__(self, where: str, data: str, generation: str, seed: int, plan, first: int, device, ahead: int = 4):
        self.plan, self.step, self.device = plan, first, torch.device(device)
        self.local = _mixture(where, data, generation, seed)  # held-out rows come from here
        self.process = None
        if ahead:
            ctx = mp.get_context("spawn")
            self.asked, self.done = ctx.Queue(), ctx.Queue()
            self.process = ctx.Process(target=_serve, args=(where, data, generation, seed, self.asked, self.done), daemon=True)
            self.process.start()
            for _ in range(ahead):
                self._ask()

    def _ask(self) -> None:
        self.asked.put((*self.plan(self.step), self.step))
        self.step += 1

    def get(self):
        """ids int64 [rows, length+1], weight float32 (same), class_id int64 [rows]."""
        if self.process is None:
            batch = self.local.batch(*self.plan(self.step), self.step)
            self.step += 1
        else:
            self._ask()
            batch = self.done.get(timeout=300)
        return self.to_device(batch)

    def to_device(self, batch):
        out = []
        for array, dtype in zip(batch, (torch.int64, torch.float32, torch.int64)):
            t = torch.from_numpy(array).to(dtype)
            out.append(t.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else t)
        return out

    def close(self) -> None:
        if self.process is not None:
            self.asked.put(None)
            self.process.join(timeout=5)
            if self.process.is_alive():
                self.process.terminate()
