"""Fuzzed strings and the ids Hugging Face tokenizers gives them, and the Engram token map: oracles of the C++ tokenizer.

    python tests/text/tokenizer_oracle.py models/mini-v41/tokenizer.json tests/data/tokenizer_vectors.json --count 400

The strings cover every Unicode plane, every kind of white space, added tokens in the middle of text, long runs and mixed
scripts. The same seed gives the same strings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import random

WHITE_SPACE = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e\u2000\u2003\u2007\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
WORDS = ["the", "Hello", "don't", "café", "naïve", "über", "ß", "return", "self.x", "if(x)", "->", "==", "!=", "#include",
         "123", "4567890", "3.14", "1e-5", "٣٤٥", "½", "Ⅷ", "你好", "世界", "今日は", "カタカナ", "ひらがな", "한국어", "Привет", "مرحبا",
         "שלום", "नमस्ते", "ไทย", "e\u0301", "a\u0300\u0323", "👍🏽", "👨‍👩‍👧", "🇩🇪", "—", "…", "“q”", "€5", "∑", "𝔘", "<", "｜", "|", "\\"]
RANGES = [(0x20, 0x7F), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x700), (0x900, 0xE00), (0x1100, 0x1200),
          (0x2000, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xF900),
          (0xF900, 0x10000), (0x10000, 0x20000), (0x20000, 0x30000), (0x30000, 0x40000), (0xE0000, 0xE0200),
          (0xF0000, 0xF0100), (0x10FF00, 0x110000), (0, 0x20), (0, 0x110000)]


def code_point(rng: random.Random) -> str:
    low, high = rng.choice(RANGES)
    while True:
        value = rng.randrange(low, high)
        if not 0xD800 <= value < 0xE000:
            return chr(value)


def fragment(rng: random.Random, added: list[str]) -> str:
    kind = rng.randrange(10)
    if kind == 0:
        token = rng.choice(added)
        return token if rng.random() < 0.7 else token[: rng.randrange(len(token))]
    if kind == 1:
        return "".join(rng.choice(WHITE_SPACE) for _ in range(rng.randint(1, 6)))
    if kind == 2:
        return rng.choice([" ", "\n", "a", "0", "=", "é", "中", "\u3000", "\t", "ab"]) * rng.choice([2, 3, 7, 30, 200])
    if kind == 3:
        return "".join(code_point(rng) for _ in range(rng.randint(1, 12)))
    if kind == 4:
        low, high = rng.choice(RANGES)
        letters = [c for c in (rng.randrange(low, high) for _ in range(8)) if not 0xD800 <= c < 0xE000]
        return "".join(map(chr, letters))
    if kind == 5:
        return str(rng.randrange(10 ** rng.randint(1, 12)))
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))


def strings(count: int, seed: int, added: list[str]):
    rng = random.Random(seed)
    fixed = ["", " ", "\n", "\u180e", "\u180e \u180e", " \u180e\n", "a\u0085b", "x\u2028y", "\r\n\r\n", "  \n  x", "\x00\x01"]
    for i in range(count):
        if i < len(fixed):
            yield fixed[i]
        else:
            glue = rng.choice(["", " ", "\n"])
            yield glue.join(fragment(rng, added) for _ in range(rng.randint(1, 7)))


def vectors(path: pathlib.Path, count: int, seed: int):
    """(text, ids) pairs for the tokenizer at `path`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    for text in strings(count, seed, added):
        yield text, tokenizer.encode(text, add_special_tokens=False).ids


def compressed_token_map(path: pathlib.Path) -> list[int]:
    """The Engram map of spec/model.md 7.1, with the normalizers that the reference uses."""
    from tokenizers import Regex, Tokenizer, normalizers

    tokenizer = Tokenizer.from_file(str(path))
    one_space = "\ue000"
    fold = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), one_space),
        normalizers.Strip(), normalizers.Replace(one_space, " ")])
    numbers: dict[str, int] = {}
    out = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else fold.normalize_str(text) or text
        out.append(numbers.setdefault(key, len(numbers)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    import tokenizers

    digest = hashlib.sha256(args.tokenizer.read_bytes()).hexdigest()
    lines = [json.dumps([text, ids], ensure_ascii=True, separators=(",", ":"))
             for text, ids in vectors(args.tokenizer, args.count, args.seed)]
    header = json.dumps({"tokenizer_sha256": digest, "made_by": f"tokenizers {tokenizers.__version__}"})
    compressed = json.dumps(compressed_token_map(args.tokenizer), separators=(",", ":"))
    args.out.write_text('{"about":' + header + ',\n"compressed_token_map":' + compressed + ',\n"vectors":[\n' +
                        ",\n".join(lines) + "\n]}\n", encoding="ascii")
    print(f"{args.out}: {len(lines)} strings, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
