"""Trains the tokenizer of the mini models and computes the Engram compressed token map.

    python tools/train/tokenizer.py --data build/train --out models/mini-v41/tokenizer.json models/mini-v4/tokenizer.json

Byte-level BPE with the pre-tokeniser of spec/model.md 8.1. Digits never merge in training, so every digit is a token of
its own; the file itself is plain BPE.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2560
SPECIAL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>",
           "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>",
           "<｜title｜>", "<｜read_url｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜deepseek_image｜>")
CONTROL = 3  # begin, end and pad are "special" in the sense of the file format: dropped by default when decoding
SPLITS = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
          r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SHARES = {"prose": 0.42, "code": 0.38, "shell": 0.14, "json": 0.06}
SAMPLE_CHARS = 20_000_000
SYNTHETIC_DOCUMENTS = 350


def pre_tokenizer(split_digits: bool = False):
    steps = [pre_tokenizers.Split(Regex(r), "isolated") for r in SPLITS]
    if split_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sample(data: pathlib.Path, seed: int):
    """Texts for training: a fixed share of every class, then synthetic conversations of both generations."""
    import tasks

    rng = random.Random(seed)
    for text_class, share in SHARES.items():
        texts = [json.loads(line)["text"] for line in open(data / "text" / f"{text_class}.train.jsonl", encoding="utf-8")]
        rng.shuffle(texts)
        used = 0
        for text in texts:
            if used > share * SAMPLE_CHARS:
                break
            used += len(text)
            yield text
    for i in range(SYNTHETIC_DOCUMENTS):
        for task in ("chat", "tool", "arith"):
            for piece, _ in tasks.document(task, "v41" if i % 2 else "v4", random.Random(f"tokenizer:{task}:{i}")):
                yield piece


def train(data: pathlib.Path, seed: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # Special tokens are registered first: they take ids 0.. and are cut out of the training text.
    tokenizer.pre_tokenizer = pre_tokenizer(split_digits=True)
    added = [AddedToken(s, special=i < CONTROL, normalized=False) for i, s in enumerate(SPECIAL)]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=added, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), min_frequency=2)

    def pieces():
        import re
        cut = re.compile("|".join(map(re.escape, SPECIAL)))
        for text in sample(data, seed):
            yield from cut.split(text)

    tokenizer.train_from_iterator(pieces(), trainer=trainer)
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def to_json(tokenizer: Tokenizer) -> str:
    """The tokenizer file, compact, laid out like DeepSeek's own (no normaliser, no post-processor)."""
    value = json.loads(tokenizer.to_str())
    for token in value["added_tokens"]:
        token["special"] = token["id"] < CONTROL
    value["post_processor"] = value["normalizer"] = None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def compressed_token_map(tokenizer: Tokenizer) -> list[int]:
    """Engram map of every id to a compressed id (spec/model.md 7.1); their count is `engram_compressed_vocab_size`."""
    numbers: dict[str, int] = {}
    out = []
    for token_id in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token_id)
        else:
            key = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
            key = "".join(c for c in key if unicodedata.category(c) != "Mn").lower()
            squeezed, blank = [], False
            for c in key:
                if c in " \t\r\n":
                    if not blank:
                        squeezed.append(" ")
                    blank = True
                else:
                    squeezed.append(c)
                    blank = False
            key = "".join(squeezed)
            key = "\ue000" if key == " " else key
            key = key.strip().replace("\ue000", " ")
            key = key or text
        out.append(numbers.setdefault(key, len(numbers)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("build/train"))
    parser.add_argument("--out", type=pathlib.Path, nargs="+",
                        default=[pathlib.Path("models/mini-v41/tokenizer.json"), pathlib.Path("models/mini-v4/tokenizer.json")])
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    tokenizer = train(args.data, args.seed)
    text = to_json(tokenizer)
    for path in args.out:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(text.encode())} bytes")
    loaded = Tokenizer.from_str(text)
    ids = compressed_token_map(loaded)
    print(f"vocabulary {loaded.get_vocab_size()}, engram_compressed_vocab_size {max(ids) + 1}, engram pad {ids[2]}")


if __name__ == "__main__":
    main()
