"""Engram: hashed n-gram memory of V4.1 (spec/model.md 7.1)."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import torch

from numerics import Arithmetic, Weight, e4m3_decode, e8m0_decode

_SPACE = "\ue000"  # stands for a text that is exactly one space while both ends are stripped
# Unicode White_Space; str.strip() alone would also take U+001C..U+001F.
_WHITE = "".join(chr(c) for c in range(0x3001) if chr(c).isspace() and not 0x1C <= c <= 0x1F)


def _is_prime(n: int) -> bool:
    if n < 2 or n % 2 == 0:
        return n == 2
    d = 3
    while d * d <= n:
        if n % d == 0:
            return False
        d += 2
    return True


def bucket_primes(layers: int, orders: int, heads: int, vocab: int) -> list[list[list[int]]]:
    """[layer][order][head]: each (layer, order) scans upwards from `vocab` for primes that nothing before has used."""
    used: set[int] = set()
    out = []
    for _ in range(layers):
        layer = []
        for _ in range(orders):
            candidate, row = vocab - 1, []
            while len(row) < heads:
                candidate += 1
                if candidate not in used and _is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
            layer.append(row)
        out.append(layer)
    return out


def multipliers(layer_id: int, count: int, compressed_vocab: int) -> np.ndarray:
    """[count] odd int64 factors, one per look-back distance."""
    bound = ((2**63 - 1) // compressed_vocab) // 2
    return np.random.default_rng(10007 * layer_id).integers(0, bound, size=count, dtype=np.int64) * 2 + 1


def normalise(text: str) -> str:
    """The key under which token texts are merged (empty results keep the text as it was)."""
    t = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    # All marks go (Mn, Mc, Me); lowering is per character, so a final sigma is not special.
    t = "".join(c.lower() for c in t if unicodedata.category(c)[0] != "M")
    pieces, gap = [], False
    for c in t:
        if c in " \t\r\n":
            gap = True
            continue
        if gap:
            pieces.append(" ")
            gap = False
        pieces.append(c)
    t = "".join(pieces) + (" " if gap else "")
    t = _SPACE if t == " " else t
    t = t.strip(_WHITE).replace(_SPACE, " ")
    return t or text


def token_map(tokenizer_json: str | Path) -> list[int]:
    """id -> compressed id for every id of a tokenizer.json, in order of first appearance of a key."""
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(str(tokenizer_json))
    keys: dict[str, int] = {}
    out = []
    for i in range(tok.get_vocab_size(with_added_tokens=True)):
        text = tok.decode([i], skip_special_tokens=False)
        key = tok.id_to_token(i) if "\ufffd" in text else normalise(text)
        out.append(keys.setdefault(key, len(keys)))
    return out


class Engram:
    """Hash constants of all Engram layers of one model."""

    def __init__(self, spec, mapping: list[int] | None):
        e = spec.engram
        self.layer_ids = e["layer_ids"]
        self.orders = e["max_ngram_size"] - 1
        self.heads = e["n_heads"]
        self.head_dim = e["head_dim"]
        self.map = np.asarray(mapping if mapping is not None else range(spec.vocab), dtype=np.int64)
        count = int(self.map.max()) + 1
        if count != e["compressed_vocab_size"]:
            raise ValueError(f"engram token map has {count} classes, config.json says {e['compressed_vocab_size']}")
        self.pad = int(self.map[e["pad_token_id"]])
        self.primes = bucket_primes(len(self.layer_ids), self.orders, self.heads, e["vocab_size"])
        self.offsets = []
        for layer, rows in zip(self.primes, e["num_embeddings"]):
            flat = [p for order in layer for p in order]
            if sum(flat) != rows:
                raise ValueError(f"engram primes sum to {sum(flat)}, config.json says {rows} rows")
            self.offsets.append(np.concatenate(([0], np.cumsum(flat)[:-1])))
        self.multipliers = [multipliers(i, self.orders + 1, count) for i in self.layer_ids]

    def rows(self, ordinal: int, history: list[int], start: int) -> torch.Tensor:
        """Table rows [T, orders*heads] int64 of Engram layer `ordinal` for positions start.. of the token ids `history`."""
        ids = self.map[np.asarray(history, dtype=np.int64)]
        out = np.zeros((len(history) - start, self.orders * self.heads), dtype=np.int64)
        for t in range(start, len(history)):
            mixed, column = ids[t] * self.multipliers[ordinal][0], 0
            for order in range(self.orders):
                back = t - order - 1
                y = ids[back] if back >= 0 else self.pad
                mixed = mixed ^ (y * self.multipliers[ordinal][order + 1])
                for prime in self.primes[ordinal][order]:
                    out[t - start, column] = mixed % prime + self.offsets[ordinal][column]
                    column += 1
        return torch.from_numpy(out)


class EngramLayer:
    """Table, projection and gate weights of one Engram layer."""

    def __init__(self, ck, prefix: str):
        self.codes = ck.get(prefix + ".embed.weight")
        self.scales = ck.get(prefix + ".embed.scale")
        self.wkv: Weight = ck.weight(prefix + ".wkv")
        self.q_weight = ck.get(prefix + ".q_weight").float()
        self.k_weight = ck.get(prefix + ".k_weight").float()

    def write(self, ar: Arithmetic, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, 4, D], rows [T, columns] -> (x after the write, gate [T, 4] fp32)."""
        copies, dim = x.shape[1], x.shape[2]
        codes, scales = self.codes[rows], self.scales[rows]
        values = e4m3_decode(codes).unflatten(-1, (scales.shape[-1], -1)) * e8m0_decode(scales).unsqueeze(-1)
        projected = ar.linear(ar.act(values.flatten(1)), self.wkv).float()
        key = projected[:, : copies * dim].unflatten(1, (copies, dim))
        value = projected[:, copies * dim :]
        xf = x.float()
        xd, kd = xf.double(), key.double()
        norms = (xd.square().mean(-1) + 1e-20).sqrt() * (kd.square().mean(-1) + 1e-20).sqrt()
        dot = (xd * self.q_weight.double() * self.k_weight.double() * kd).sum(-1) / norms * dim**-0.5
        gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp_min(1e-6).sqrt()).float()
        return ar.act(xf + gate.unsqueeze(-1) * value.unsqueeze(1)), gate


def load_token_map(directory: str | Path, vocab: int) -> list[int] | None:
    """Token map of a model directory: engram_token_map.json if present (test checkpoints), else from tokenizer.json."""
    stored = Path(directory) / "engram_token_map.json"
    if stored.exists():
        return json.loads(stored.read_text())
    tokenizer = Path(directory) / "tokenizer.json"
    return token_map(tokenizer) if tokenizer.exists() else None
