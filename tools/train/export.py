#!/usr/bin/env python3
"""Checkpoint <-> real tensor names, dtypes and packing (spec/model.md appendix B).

    export.py --model DIR --checkpoint FILE --out DIR     newest training checkpoint -> config.json + model.safetensors
    export.py --model DIR --sizes                         tensor count and bytes of an export, nothing written
"""

from __future__ import annotations

import argparse
import json
import os
import struct
from pathlib import Path

import torch

import quant
from config import Spec, load_spec
from model import Model

_SIZES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4, "I64": 8}
_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _raw(dtype: str, t: torch.Tensor) -> tuple[str, list[int], bytes]:
    t = t.detach().cpu().contiguous()
    data = t.view(torch.uint8) if t.dtype != torch.uint8 and t.dim() else t
    return dtype, list(t.shape), data.numpy().tobytes()


def _e8m0(scale: torch.Tensor) -> torch.Tensor:
    """Powers of two float32 -> biased exponent bytes."""
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def _pack_fp4(values: torch.Tensor) -> torch.Tensor:
    """e2m1 values [..., K] -> bytes [..., K/2], low nibble = even k."""
    table = torch.tensor(_E2M1, device=values.device)
    code = torch.bucketize(values.abs(), table) + 8 * torch.signbit(values).long()
    return (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)


def _unpack_fp4(packed: torch.Tensor) -> torch.Tensor:
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return torch.tensor(_E2M1 + [-v for v in _E2M1])[code]


def export_tensors(model: Model) -> dict[str, tuple[str, list[int], bytes]]:
    """name -> (safetensors dtype, shape, bytes) of the whole checkpoint."""
    out, spec = {}, model.spec

    def fp8(stem, w, rows=False):
        _, codes, scale = quant.weight_rows_fp8(w) if rows else quant.weight_fp8(w, spec.block)
        out[f"{stem}.weight"] = _raw("F8_E4M3", codes.to(torch.float8_e4m3fn))
        out[f"{stem}.scale"] = _raw("F8_E8M0", _e8m0(scale))

    for p in model.store.params:
        w = model.store.master(p.name).detach().float()
        if p.kind in ("fp8", "table"):
            fp8(p.name.removesuffix(".weight"), w, p.kind == "table")
        elif p.kind in ("bf16", "bf16f"):
            out[p.name] = _raw("BF16", w.bfloat16())
        elif p.kind == "f32":
            out[p.name] = _raw("F32", w)
        else:
            ffn = p.name.rsplit(".", 1)[0]
            for i, part in enumerate(("w1", "w3") if p.kind == "moe13" else ("w2",)):
                stack = w[:, i] if p.kind == "moe13" else w
                _, codes, scale = quant.weight_fp4(stack[:-1])
                packed, scale = _pack_fp4(codes), _e8m0(scale)
                for e in range(stack.shape[0] - 1):
                    out[f"{ffn}.experts.{e}.{part}.weight"] = _raw("I8", packed[e])
                    out[f"{ffn}.experts.{e}.{part}.scale"] = _raw("F8_E8M0", scale[e])
                fp8(f"{ffn}.shared_experts.{part}", stack[-1])
    for prefix, bias in model.bias.items():
        out[f"{prefix}.ffn.gate.bias"] = _raw("F32", bias)
        if spec.v41:
            out[f"{prefix}.ffn.gate.bias_vl"] = _raw("F32", bias)
    for layer, table in model.tid2eid.items():
        out[f"layers.{layer}.ffn.gate.tid2eid"] = _raw("I64", table)
    return out


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> int:
    """Single shard; tensors by decreasing item size keep every tensor aligned. Returns the file size in bytes."""
    order = sorted(tensors, key=lambda n: (-_SIZES[tensors[n][0]], n))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in order:
            f.write(tensors[name][2])
    os.replace(partial, path)
    return 8 + len(text) + at


def read_safetensors(path: Path) -> dict[str, tuple[str, torch.Tensor]]:
    """name -> (dtype name, tensor). fp8 weights and E8M0 scales come as uint8 codes, the rest in its own dtype."""
    data = Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    torch_type = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64, "I32": torch.int32}
    out = {}
    for name, h in header.items():
        lo, hi = (8 + n + o for o in h["data_offsets"])
        t = torch.frombuffer(bytearray(data[lo:hi]), dtype=torch.uint8).view(torch_type.get(h["dtype"], torch.uint8))
        out[name] = (h["dtype"], t.view(h["shape"]))
    return out


def _scales(codes: torch.Tensor) -> torch.Tensor:
    return (codes.to(torch.int32) << 23).view(torch.float32)


def import_tensors(model: Model, tensors: dict[str, tuple[str, torch.Tensor]]) -> None:
    """Loads an exported (or the golden) checkpoint into the masters. Missing or unknown names raise KeyError."""
    left = dict(tensors)

    def take(name):
        return left.pop(name)[1]

    def fp8(stem, rows=False):
        w = take(f"{stem}.weight").view(torch.float8_e4m3fn).float()
        s = _scales(take(f"{stem}.scale"))
        grid = (1, 32) if rows else (model.spec.block, model.spec.block)
        return w * s.repeat_interleave(grid[0], 0).repeat_interleave(grid[1], 1)[:w.shape[0], :w.shape[1]]

    for p in model.store.params:
        master = model.store.master(p.name)
        if p.kind in ("fp8", "table"):
            master.copy_(fp8(p.name.removesuffix(".weight"), p.kind == "table"))
        elif p.kind in ("moe13", "moe2"):
            ffn = p.name.rsplit(".", 1)[0]
            for i, part in enumerate(("w1", "w3") if p.kind == "moe13" else ("w2",)):
                stack = master[:, i] if p.kind == "moe13" else master
                for e in range(stack.shape[0] - 1):
                    w = _unpack_fp4(take(f"{ffn}.experts.{e}.{part}.weight"))
                    stack[e].copy_(w * _scales(take(f"{ffn}.experts.{e}.{part}.scale")).repeat_interleave(32, 1))
                stack[-1].copy_(fp8(f"{ffn}.shared_experts.{part}"))
        else:
            master.copy_(take(p.name).float())
    for prefix, bias in model.bias.items():
        bias.copy_(take(f"{prefix}.ffn.gate.bias"))
        left.pop(f"{prefix}.ffn.gate.bias_vl", None)
    for layer in model.tid2eid:
        model.set_hash_table(layer, take(f"layers.{layer}.ffn.gate.tid2eid"))
    if left:
        raise KeyError(f"unknown tensors: {sorted(left)[:5]}")
    model.store.refresh(True)


def export(model: Model, out: Path) -> int:
    """Writes config.json and model.safetensors; returns the bytes of the latter."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(model.spec.raw, indent=2) + "\n")
    return write_safetensors(out / "model.safetensors", export_tensors(model))


def main() -> None:
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", type=Path, required=True, help="directory with config.json (and tokenizer.json)")
    a.add_argument("--checkpoint", type=Path, help="training checkpoint (checkpoint.pt)")
    a.add_argument("--out", type=Path, help="directory to write")
    a.add_argument("--sizes", action="store_true")
    args = a.parse_args()
    spec = load_spec(args.model)
    if args.sizes:
        tensors = export_tensors(Model(spec))
        by_type: dict[str, int] = {}
        for dtype, _, data in tensors.values():
            by_type[dtype] = by_type.get(dtype, 0) + len(data)
        print(f"{len(tensors)} tensors, {sum(by_type.values())} bytes {by_type}, "
              f"{sum(p.numel() for p in map(Model(spec).store.master, [q.name for q in Model(spec).store.params]))} parameters")
        return
    if not (args.checkpoint and args.out):
        a.error("--checkpoint and --out are needed")
    model = Model(spec)
    model.load_state(torch.load(args.checkpoint, map_location="cpu", weights_only=True)["model"])
    print(f"{args.out / 'model.safetensors'}: {export(model, args.out)} bytes")


if __name__ == "__main__":
    main()
