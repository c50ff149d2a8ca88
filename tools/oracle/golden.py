#!/usr/bin/env python3
"""Writes the golden vectors of tests/data.

    golden.py                                        stage and end-to-end vectors of the tiny checkpoints
    golden.py --tiny-out DIR                         ... and leaves the two tiny checkpoints in DIR
    golden.py --model models/mini-v41 --positions 2000 [--text FILE]   logits and drafts of a trained model
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

import golden_mini
import golden_stages
import tiny

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"


def write_tiny(out: Path, checkpoints: Path) -> None:
    for label, config in (("v41", tiny.tiny_v41()), ("v4", tiny.tiny_v4())):
        manifest = tiny.write_model(config, checkpoints / f"tiny_{label}")
        target = out / label
        target.mkdir(parents=True, exist_ok=True)
        (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (target / "recipe.json").write_text(_one_line_per_tensor(manifest))
        golden_stages.write_all(checkpoints / f"tiny_{label}", target)


def _one_line_per_tensor(manifest: dict) -> str:
    lines = [f"  {json.dumps(n)}: {json.dumps(t)}" for n, t in manifest["tensors"].items()]
    return '{\n "checksum": ' + json.dumps(manifest["checksum"]) + ',\n "tensors": {\n' + ",\n".join(lines) + "\n }\n}\n"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, help="directory of a trained model; without it the tiny vectors are written")
    p.add_argument("--positions", type=int, default=2000, help="tokens to run through --model in one prefill")
    p.add_argument("--text", type=Path, help="text that gives the token ids (default: this repository's Markdown and sources)")
    p.add_argument("--out", type=Path, default=DATA, help="output folder (default: tests/data)")
    p.add_argument("--tiny-out", type=Path, help="keep the tiny checkpoints here")
    a = p.parse_args()
    torch.manual_seed(0)
    if a.model:
        golden_mini.write(a.model, a.positions, a.text, a.out)
    elif a.tiny_out:
        write_tiny(a.out, a.tiny_out)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_tiny(a.out, Path(folder))


if __name__ == "__main__":
    main()
