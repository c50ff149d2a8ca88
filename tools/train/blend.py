"""Blends the drafters of two exports of one backbone's history: weights = (1 - share) of the first and share of the second.

    python tools/train/blend.py --model models/mini-v41 --first tuned.safetensors --second before.safetensors --share 0.25 --out DIR

A drafter that was tuned further drafts a little better when some of its starting point is mixed back in. Everything else,
the router biases of the drafter included, is the first's.
"""

from __future__ import annotations

import argparse
import pathlib

import torch

from config import load_spec
from export import export, import_tensors, read_safetensors
from model import Model


def load(model_dir: pathlib.Path, weights: pathlib.Path) -> Model:
    model = Model(load_spec(model_dir), "cpu")  # the Engram map stays unknown, nothing runs
    import_tensors(model, read_safetensors(weights))
    return model


@torch.no_grad()
def blend(first: Model, second: Model, share: float) -> None:
    """Moves the drafter of `first` towards that of `second`."""
    for mine, other in zip(first.store.groups, second.store.groups, strict=True):
        if mine.params[0].part == "drafter":
            mine.master.lerp_(other.master, share)
    first.store.refresh(first.quant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "first", "second", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--share", type=float, required=True)
    args = parser.parse_args()
    model = load(args.model, args.first)
    blend(model, load(args.model, args.second), args.share)
    print(f"{args.out / 'model.safetensors'}: {export(model, args.out)} bytes")


if __name__ == "__main__":
    main()
