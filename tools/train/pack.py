"""Tokenises the corpus and the synthetic documents into the files the loader reads.

    python tools/train/pack.py --data build/train --tokenizer models/mini-v41/tokenizer.json

Writes `<data>/data/<name>.<split>.xz` (see dataset.py for the layout), `pieces.json` (token ids of the recall pieces) and
`meta.json` (tokens and bytes per class).
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import pathlib
import random

import numpy as np
from tokenizers import Tokenizer

import task_recall as recall
import tasks
import words
from chat_format import GENERATIONS
from dataset import NATURAL, SYNTHETIC

EOS = 1
# Training documents per task and generation; about a fiftieth as many held out.
COUNTS = {"chat": 30_000, "tool": 14_000, "arith": 30_000}


def write(path: pathlib.Path, **arrays: np.ndarray) -> int:
    """One xz file that holds named arrays in npz form; returns its size in bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=6))
    return path.stat().st_size


def pack_natural(tokenizer: Tokenizer, texts: list[str]) -> dict[str, np.ndarray]:
    """Documents end in EOS; BOS is put in front by the loader, which may start in the middle of a document."""
    parts, offsets = [], [0]
    for i in range(0, len(texts), 64):
        for encoding in tokenizer.encode_batch(texts[i : i + 64], add_special_tokens=False):
            parts.append(np.array(encoding.ids + [EOS], dtype=np.uint16))
            offsets.append(offsets[-1] + len(parts[-1]))
    return {"ids": np.concatenate(parts), "offsets": np.array(offsets, dtype=np.int64)}


def pack_synthetic(tokenizer: Tokenizer, documents: list[list[tuple[str, int]]]) -> dict[str, np.ndarray]:
    """Ids and kind (context or target) of every token. A document is tokenised whole: a token's kind is that of its first
    character, so piece boundaries never change the tokens."""
    ids, kinds, offsets = [], [], [0]
    texts = ["".join(text for text, _ in pieces) for pieces in documents]
    for pieces, text, encoding in zip(documents, texts, tokenizer.encode_batch(texts, add_special_tokens=False)):
        by_char = np.concatenate([np.full(len(t), kind, dtype=np.uint8) for t, kind in pieces])
        starts = np.array([start for start, _ in encoding.offsets])
        ids.append(np.array(encoding.ids, dtype=np.uint16))
        kinds.append(by_char[starts])
        offsets.append(offsets[-1] + len(starts))
    return {"ids": np.concatenate(ids), "kinds": np.concatenate(kinds), "offsets": np.array(offsets, dtype=np.int64)}


def recall_pieces(tokenizer: Tokenizer) -> dict:
    """Token ids of everything a recall row is composed of, and the ids whose text ends a line."""
    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    value_words = sorted(set(words.VALUE_WORDS))
    pieces = {"prefix": ids(recall.PREFIX), "link": ids(recall.LINK), "stop": ids(recall.STOP), "full_stop": ids("."), "vocabulary": tokenizer.get_vocab_size(),
              "space": ids(" "), "digits": [ids(d)[0] for d in "0123456789"], "digit_count": recall.DIGITS,
              "question": ids(recall.QUESTION), "mark": ids("?"), "intro": ids(recall.CHAT_INTRO),
              "adjectives": [ids(" " + w) for w in words.ADJECTIVES], "nouns": [ids(" " + w) for w in words.NOUNS],
              "value_words": [ids(" " + w) for w in value_words]}
    pieces["line_end"] = [i for i in range(tokenizer.get_vocab_size()) if tokenizer.decode([i]).endswith("\n")]
    text = recall.PREFIX + " Amber Falcon" + recall.LINK + " 48213" + recall.STOP
    composed = sum([pieces["prefix"], ids(" Amber"), ids(" Falcon"), pieces["link"], pieces["space"],
                    [pieces["digits"][int(d)] for d in "48213"], pieces["stop"]], [])
    if ids(text) != composed:
        raise SystemExit(f"pack: recall pieces do not tokenise independently: {ids(text)} and {composed}")
    return pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("build/train"))
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path("models/mini-v41/tokenizer.json"))
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    out = args.data / "data"
    out.mkdir(parents=True, exist_ok=True)
    meta: dict[str, dict] = {}

    def record(name: str, arrays: dict[str, np.ndarray], text_bytes: int) -> None:
        size = write(out / f"{name}.xz", **arrays)
        meta[name] = {"tokens": int(len(arrays["ids"])), "documents": int(len(arrays["offsets"]) - 1), "bytes": text_bytes,
                      "packed_bytes": size}
        if "kinds" in arrays:
            meta[name]["target_tokens"] = int(arrays["kinds"].sum())
        print(f"{name:24} {meta[name]['tokens'] / 1e6:7.3f} M tokens {text_bytes / max(1, meta[name]['tokens']):5.2f} bytes/token "
              f"{size / 1e6:6.2f} MB packed", flush=True)

    for split in ("heldout", "train"):
        for task in SYNTHETIC:
            for generation in GENERATIONS:
                count = COUNTS[task] if split == "train" else COUNTS[task] // 50
                held = split == "heldout"
                documents = [tasks.document(task, generation, random.Random(f"{split}:{task}:{i}"), held) for i in range(count)]
                record(f"{task}.{generation}.{split}", pack_synthetic(tokenizer, documents),
                       sum(len(t.encode()) for d in documents for t, _ in d))
        for text_class in NATURAL:
            with open(args.data / "text" / f"{text_class}.{split}.jsonl", encoding="utf-8") as f:
                texts = [json.loads(line)["text"] for line in f]
            record(f"{text_class}.{split}", pack_natural(tokenizer, texts), sum(len(t.encode()) for t in texts))
    (out / "pieces.json").write_text(json.dumps(recall_pieces(tokenizer)))
    (out / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(f"total {sum(m['packed_bytes'] for m in meta.values()) / 1e6:.1f} MB packed")


if __name__ == "__main__":
    main()
