"""One-layer comparison with the published-semantics vectors of V4.1 (format: the README beside them).

Each layer starts from the stored input stream and `pre`; readers use what their owner layers produced in the same pass,
owners themselves started from stored inputs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from attention import Shared
from checkpoint import read_safetensors
from model import Model

RMS_LIMIT = {37: 3e-3, 401: 2e-2}


class GoldenRun:
    """One pass over all layers of one prompt; picks are forced to the stored ones unless `own_picks`."""

    def __init__(self, directory: Path, prompt: int, own_picks=False, **switches):
        self.data = read_safetensors(directory / f"golden_prompt{prompt}.safetensors")
        self.prompt = prompt
        self.model = Model.load(directory, **{"index_scores": "bf16", "layout": "ref", **switches})
        self.records: dict[str, torch.Tensor] = {}
        self.model.options.recorder = self.records.__setitem__
        if not own_picks:
            entries = {b.index: prompt // b.ratio for b in self.model.spec.layers if b.owns_index}
            for layer, total in entries.items():
                picks = self.data[f"layers.{layer}.picks"].long()
                self.model.options.forced_picks[layer] = picks[:, : min(picks.shape[1], total)]

    def errors(self) -> dict[int, tuple[float, float]]:
        """layer -> (rms over all values, median over rows of the row rms) of the stream after the layer."""
        ids = self.data["token_ids"][: self.prompt].long()
        seq, shared, out = self.model.new_sequence(), Shared(), {}
        seq.ids.extend(ids.tolist())
        for layer in range(len(self.model.blocks)):
            if layer == 0:
                x, carried = self.model.start_stream(ids)
            else:
                x, carried = self.data[f"layers.{layer - 1}.x_all"], self.data[f"layers.{layer - 1}.next_pre_all"]
            x, _ = self.model.run_layer(layer, x, carried, ids, seq, shared)
            error = (x.float() - self.data[f"layers.{layer}.x_all"].float()).square()
            out[layer] = (error.mean().sqrt().item(), error.mean((1, 2)).sqrt().median().item())
        return out
