"""Checkpoints in the published format (spec/model.md appendix B): safetensors as raw bytes, read and written by hand.

The usual library is avoided on purpose: e8m0 scales and packed fp4 must never pass through a numeric cast.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch

from numerics import BF16, F32, Weight, e2m1_decode, e4m3_decode, e8m0_decode, unpack_nibbles

_NUMPY = {
    "F32": np.float32, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I8": np.uint8, "U8": np.uint8,
    "I32": np.int32, "I64": np.int64,
}  # fmt: skip


def read_safetensors(path: str | Path) -> dict[str, torch.Tensor]:
    """All tensors of one file. BF16, F32, I32, I64 get their torch dtype; 8-bit kinds stay uint8 codes."""
    data = np.fromfile(path, dtype=np.uint8)
    (n,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + n].tobytes())
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        raw = data[8 + n + begin : 8 + n + end].tobytes()
        array = np.frombuffer(raw, dtype=_NUMPY[info["dtype"]]).reshape(info["shape"]).copy()
        if info["dtype"] == "BF16":
            out[name] = torch.from_numpy(array.view(np.int16)).view(BF16)
        else:
            out[name] = torch.from_numpy(array)
    return out


def write_safetensors(path: str | Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict | None = None) -> None:
    """Writes name -> (dtype string, array of the raw element type). Wide elements come first, so all are aligned."""
    order = sorted(tensors, key=lambda k: (-tensors[k][1].dtype.itemsize, k))
    header: dict = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name in order:
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name][1]).tobytes())


def raw_array(t: torch.Tensor) -> tuple[str, np.ndarray]:
    """Torch tensor -> (safetensors dtype string, raw numpy array); bool becomes U8, int16 and below are not used."""
    t = t.detach().contiguous()
    if t.dtype == BF16:
        return "BF16", t.view(torch.int16).numpy().view(np.uint16)
    names = {F32: "F32", torch.int32: "I32", torch.int64: "I64", torch.uint8: "U8"}
    if t.dtype == torch.bool:
        t = t.to(torch.uint8)
    if t.dtype not in names:
        raise ValueError(f"no safetensors dtype for {t.dtype}")
    return names[t.dtype], t.numpy()


class Checkpoint:
    """Tensors of a model directory by name (single file or sharded with an index); `model.` prefixes are dropped."""

    def __init__(self, tensors: dict[str, torch.Tensor], weight_block: int = 0):
        self.tensors = tensors
        self.weight_block = weight_block  # set once config.json has been read

    @classmethod
    def open(cls, directory: str | Path) -> "Checkpoint":
        directory = Path(directory)
        index = directory / "model.safetensors.index.json"
        if index.exists():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        tensors: dict[str, torch.Tensor] = {}
        for name in files:
            for key, value in read_safetensors(directory / name).items():
                tensors[key.removeprefix("model.")] = value
        return cls(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise KeyError(f"checkpoint has no tensor {name!r}")
        return self.tensors[name]

    def weight(self, stem: str, kind: str = "") -> Weight:
        """The linear weight STEM.weight (or STEM itself where the name carries no suffix), dequantised if STEM.scale exists.

        kind "f32" promotes a bf16 weight to an fp32 product (compressors with pooling, gate, head, confidence).
        """
        name = stem + ".weight" if stem + ".weight" in self.tensors else stem
        t = self.get(name)
        if stem + ".scale" in self.tensors:
            return self._quantised(t, self.get(stem + ".scale"))
        if kind == "f32" or t.dtype == F32:
            return Weight(t.float(), "f32")
        return Weight(t.float(), "bf16")

    def _quantised(self, codes: torch.Tensor, scales: torch.Tensor) -> Weight:
        rows, factor = codes.shape[0], e8m0_decode(scales)
        if scales.shape[0] == rows and scales.shape[1] * 16 == codes.shape[1]:  # packed fp4, one scale per 32 of K
            values = e2m1_decode(unpack_nibbles(codes))
            return Weight(values * factor.repeat_interleave(32, 1), "quantised")
        b = self.weight_block
        factor = factor.repeat_interleave(b, 0)[:rows].repeat_interleave(b, 1)[:, : codes.shape[1]]
        return Weight(e4m3_decode(codes) * factor, "quantised")
