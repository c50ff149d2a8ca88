"""Stage vectors: inputs and outputs of every stage on a tiny checkpoint, one file per stage (tests/data/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from checkpoint import raw_array, write_safetensors
from dspark import accept_greedy
from model import Model
from numerics import BF16, quantise_fp4_e4m3, quantise_fp4_e8m0, quantise_fp8
from rope import rotate

PROMPT, SHORT, STEPS = 250, 21, 12
TOTAL = PROMPT + STEPS
# Around the start, a group edge of 2 and 4, the 64-entry softmax block, the window edge, the ratio-128 group edge, the end.
ROWS = [0, 1, 2, 3, 7, 63, 126, 127, 128, 129, 200, 255, 256, 261]
ATTEND_ROWS = [0, 1, 63, 127, 128, 200, 255, 261]
WINDOW_ROWS = [0, 1, 63, 126, 127, 128, 129, 130]


def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes tensors with int64 narrowed to I32 (nothing here exceeds it except names ending in `_i64`)."""
    out = {}
    for name, t in tensors.items():
        if t.dtype == torch.int64 and not name.endswith("_i64"):
            t = t.to(torch.int32)
        out[name] = raw_array(t)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, out)
    print(f"{path.stat().st_size:8d} {path}")


def record_window(v41: bool, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated kv [n, 512] -> record bytes: V4.1 528 B (512 + 16), V4 584 B (448 e4m3 + 128 bf16 bytes, 7 scales + 0)."""
    if v41:
        return quantise_fp8(kv, 32)
    codes, scales = quantise_fp8(kv[:, :448], 64)
    rope = torch.from_numpy(np.ascontiguousarray(kv[:, 448:].contiguous().view(torch.int16).numpy()).view(np.uint8))
    return torch.cat((codes, rope.view(kv.shape[0], 128)), 1), torch.nn.functional.pad(scales, (0, 1))


def record_entry(v41: bool, entry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise_fp4_e4m3(entry) if v41 else record_window(v41, entry)


class StageWriter:
    """Runs one prefill of TOTAL tokens and writes rows ROWS of every stage."""

    def __init__(self, directory: Path, out: Path, tokens: torch.Tensor):
        self.model, self.out, self.tokens = Model.load(directory), out, tokens
        self.model.options.plain_softmax = True
        self.rec: dict[str, torch.Tensor] = {}
        self.model.options.recorder = self.rec.__setitem__
        self.seq = self.model.new_sequence()
        self.model.forward(tokens[:TOTAL], self.seq)
        self.rows = torch.tensor(ROWS)
        self.v41 = self.model.spec.v41
        self.layers = self.model.spec.layers

    def get(self, name: str) -> torch.Tensor:
        return self.rec[name][self.rows]

    def copy(self, target: dict, prefix: str, names: list[str]) -> None:
        for n in names:
            target[f"{prefix}.{n}"] = self.get(f"{prefix}.{n}")

    def run(self) -> None:
        for stage in (
            self.mix_streams, self.project_qkv, self.compress, self.index, self.attend, self.project_out, self.route,
            self.experts, self.engram, self.head, self.rope,
        ):  # fmt: skip
            stage()

    def _save(self, stage: str, tensors: dict) -> None:
        if tensors:
            save(self.out / f"{stage}.safetensors", {"positions": self.rows, **tensors})

    def mix_streams(self) -> None:
        t: dict = {}
        parts = ["x", "pre", "post", "comb", "collapsed", "inner", "y", "out"] + (["carried"] if self.v41 else [])
        for b in self.layers:
            if b.index in (0, 1, len(self.layers) - 1):
                for sub in ("attn", "ffn"):
                    self.copy(t, f"{b.prefix}.mix_{sub}", parts)
        self._save("mix_streams", t)

    def project_qkv(self) -> None:
        t: dict = {}
        for b in self.layers[:2]:
            self.copy(t, b.prefix, ["attn.x", "attn.qr", "attn.q", "kv_rotated"])
            t[f"{b.prefix}.kv_data"], t[f"{b.prefix}.kv_scale"] = record_window(self.v41, self.get(b.prefix + ".kv_rotated"))
        self._save("project_qkv", t)

    def compress(self) -> None:
        for b in self.layers:
            if not b.owns_kv or b.index == 3 and not self.v41:
                continue
            p, t = b.prefix, {}
            entries = self.rec[p + ".compress.entry_rotated"]
            groups = torch.tensor(sorted({g for g in (0, 1, 2, 31, 62, 130, 261) if g < entries.shape[0]}))
            t["x"] = self.rec[p + ".attn.x"]
            t["groups"] = groups
            t["latent"] = self.rec[p + ".compress.latent"][groups]
            t["entry_rotated"] = entries[groups]
            t["entry_data"], t["entry_scale"] = record_entry(self.v41, entries)
            if b.owns_index:
                t["key_rotated"] = self.rec[p + ".compress.key_rotated"][groups]
                t["key_data"], t["key_scale"] = quantise_fp4_e8m0(self.rec[p + ".compress.key_rotated"])
            tail = torch.arange(TOTAL - 8, TOTAL)
            t["state_positions"] = tail
            for name in ("rows_kv", "rows_gate", "index_rows_kv", "index_rows_gate"):
                if f"{p}.compress.{name}" in self.rec:
                    t[name] = self.rec[f"{p}.compress.{name}"][tail]
            save(self.out / f"compress_{b.index}.safetensors", t)

    def index(self) -> None:
        t: dict = {}
        for b in self.layers:
            if not b.owns_index:
                continue
            p = b.prefix
            self.copy(t, p, ["attn.x", "attn.qr", "index.q_rotated", "index.weights", "index.scores", "index.picks"])
            t[p + ".index.q_data"], t[p + ".index.q_scale"] = quantise_fp4_e8m0(t[p + ".index.q_rotated"])
            if b.candidate_source:
                t[p + ".index.candidates"] = self.get(p + ".index.candidates")
        self._save("index", t)

    def attend(self) -> None:
        """The whole visible cache goes along, so that the stage can be run from these files alone."""
        for b in self.layers:
            rows = torch.tensor(ATTEND_ROWS if b.ratio else WINDOW_ROWS)
            if b.index == 2 and self.v41 or b.index > 3 or b.index == 3 and not self.v41:
                continue
            p, t = b.prefix, {"positions": rows}
            seen = self.rec[p + ".kv_rotated"][: rows[-1] + 1]
            t["kv_data"], t["kv_scale"] = record_window(self.v41, seen)
            t["q"] = self.rec[p + ".attn.q"][rows]
            if b.ratio:
                owner = f"layers.{b.kv_owner}.compress.entry_rotated"
                t["entry_data"], t["entry_scale"] = record_entry(self.v41, self.rec[owner])
            if b.index_owner >= 0:
                t["picks"] = self.rec[f"layers.{b.index_owner}.index.picks"][rows]
            t["out"] = self.rec[p + ".attn.out_unrotated"][rows]
            plain = self.rec[p + ".attn.out_plain"]
            t["out_plain"] = rotate(plain, torch.arange(TOTAL), self.model.blocks[b.index].attention.freqs(), inverse=True)[rows]
            save(self.out / f"attend_{b.index}.safetensors", t)

    def project_out(self) -> None:
        t: dict = {}
        for b in self.layers[:2]:
            self.copy(t, b.prefix, ["attn.out_unrotated", "attn.low", "attn.y"])
        self._save("project_out", t)

    def route(self) -> None:
        t: dict = {"token_ids": self.tokens[self.rows]}
        for b in self.layers:
            self.copy(t, b.prefix, ["ffn.x", "ffn.scores", "ffn.ids", "ffn.weights"])
        self._save("route", t)

    def experts(self) -> None:
        t: dict = {}
        for b in self.layers[:3]:
            self.copy(t, b.prefix, ["ffn.x", "ffn.ids", "ffn.weights", "ffn.parts", "ffn.shared", "ffn.y"])
        self._save("experts", t)

    def engram(self) -> None:
        if not self.model.hash:
            return
        h, t = self.model.hash, {"token_ids": self.tokens[:TOTAL]}
        t["token_map"] = torch.from_numpy(h.map)
        t["multipliers_i64"] = torch.from_numpy(np.stack(h.multipliers))
        t["primes"] = torch.tensor(h.primes)
        t["offsets"] = torch.from_numpy(np.stack(h.offsets))
        for b in self.layers:
            if b.engram >= 0:
                t[b.prefix + ".engram.rows"] = self.rec[b.prefix + ".engram.rows"]
                self.copy(t, b.prefix, ["engram.x", "engram.gate", "engram.out"])
        self._save("engram", t)

    def head(self) -> None:
        names = ["x", "h", "hidden", "logits"] + (["carried"] if self.v41 else [])
        self._save("head", {n: self.get("head." + n) for n in names})

    def rope(self) -> None:
        o = self.model.options
        self._save("rope", {"table_a": o.table_a, "table_b": o.table_b})


def write_draft(model: Model, out: Path, tokens: torch.Tensor) -> None:
    """One draft block after a long and after a short prompt."""
    rec: dict[str, torch.Tensor] = {}
    model.options.recorder = rec.__setitem__
    t: dict = {}
    for label, n in (("long", TOTAL), ("short", SHORT)):
        seq = model.new_sequence()
        model.forward(tokens[:n], seq)
        model.drafter.commit(seq, seq.taps)
        t[f"{label}.taps"], t[f"{label}.main_x"] = rec["draft.taps"][-8:], rec["draft.main_x"][-8:]
        held = torch.arange(max(0, n - model.spec.window), n)
        t[f"{label}.ring_positions"] = held
        for s in model.spec.stages:
            rotated = rec[s.prefix + ".kv_rotated"][held]
            pair = record_window(model.spec.v41, rotated)
            t[f"{label}.{s.prefix}.ring_data"], t[f"{label}.{s.prefix}.ring_scale"] = pair
        anchor = int(tokens[n])
        d = model.drafter.draft(seq, anchor)
        t[f"{label}.anchor"] = torch.tensor([anchor])
        for s in model.spec.stages:
            for name in ("mix_attn.x", "attn.x", "attn.out_unrotated", "attn.y", "ffn.ids", "ffn.y", "out"):
                t[f"{label}.{s.prefix}.{name}"] = rec[f"{s.prefix}.{name}"]
            t[f"{label}.{s.prefix}.kv_data"], t[f"{label}.{s.prefix}.kv_scale"] = record_window(
                model.spec.v41, rec[s.prefix + ".kv_rotated"]
            )
            if model.spec.v41:
                t[f"{label}.{s.prefix}.next_pre"] = rec[f"{s.prefix}.next_pre"]
        for name, value in (
            ("hidden", d.hidden), ("base_logits", d.base_logits), ("logits", d.logits), ("draft_ids", d.ids),
            ("confidence", d.confidence),
        ):  # fmt: skip
            t[f"{label}.{name}"] = value
    model.options.recorder = None
    save(out / "draft_block.safetensors", t)


def write_verify(model: Model, out: Path, tokens: torch.Tensor) -> None:
    """Six-row verification of drafts of which 0, 2 and 5 are what greedy decoding would say."""
    seq = model.new_sequence()
    greedy = [int(model.forward(tokens[:PROMPT], seq)[-1].argmax())]
    for _ in range(6):
        greedy.append(int(model.forward([greedy[-1]], seq)[0].argmax()))
    block, t = model.spec.draft_block, {k: [] for k in ("draft_ids", "target_ids", "target_logits", "accepted", "emitted")}
    for good in (0, 2, block):
        drafts = [greedy[1 + i] if i < good else (greedy[1 + i] + 1) % model.spec.vocab for i in range(block)]
        seq = model.new_sequence()
        model.forward(tokens[:PROMPT], seq)
        logits = model.forward([greedy[0], *drafts], seq)
        target = logits.argmax(1).tolist()
        n = accept_greedy(target, drafts)
        t["draft_ids"].append(drafts)
        t["target_ids"].append(target)
        t["target_logits"].append(logits)
        t["accepted"].append(n)
        t["emitted"].append(drafts[:n] + [target[n]] + [-1] * (block - n))
    tensors = {k: torch.stack(v) if k == "target_logits" else torch.tensor(v) for k, v in t.items()}
    save(out / "verify.safetensors", {"prompt_ids": tokens[:PROMPT], "anchor": torch.tensor(greedy[:1]), **tensors})


def write_end_to_end(model: Model, out: Path, tokens: torch.Tensor, prompt: int) -> None:
    """Prefill of `prompt` tokens in one call, then STEPS teacher-forced decode steps, a draft block after each."""
    seq = model.new_sequence()
    logits = model.forward(tokens[:prompt], seq)
    kept = torch.arange(0, prompt) if prompt < 64 else torch.linspace(0, prompt - 1, 64).round().long()
    t = {"token_ids": tokens[: prompt + STEPS + 1], "prefill.positions": kept, "prefill.logits": logits[kept]}
    model.drafter.commit(seq, seq.taps)
    logits, drafts = [], []
    for i in range(prompt, prompt + STEPS):
        logits.append(model.forward(tokens[i : i + 1], seq)[0])
        model.drafter.commit(seq, seq.taps)
        drafts.append(model.drafter.draft(seq, int(tokens[i + 1])))
    t["decode.logits"] = torch.stack(logits)
    t["draft_ids"] = torch.stack([d.ids for d in drafts])
    t["confidence"] = torch.stack([d.confidence for d in drafts])
    save(out / f"end_to_end_{prompt}.safetensors", t)


def write_all(directory: Path, out: Path) -> None:
    """All stage and end-to-end files of one tiny checkpoint."""
    tokens = torch.from_numpy(np.random.default_rng([2026, 1129]).integers(4, 256, TOTAL + 1))
    StageWriter(directory, out, tokens).run()
    model = Model.load(directory)
    assert model.embed.dtype == BF16
    write_draft(model, out, tokens)
    write_verify(model, out, tokens)
    write_end_to_end(model, out, tokens, PROMPT)
    write_end_to_end(model, out, tokens, SHORT)
