"""Tiny random checkpoints in the published format, from a recipe that any language can repeat bit for bit.

No random-number library is involved. Element i of tensor NAME comes from the 64-bit word

    u(NAME, i) = mix(fnv1a64(NAME) + (i + 1) * 0x9E3779B97F4A7C15)

(FNV-1a over the name's bytes; `mix` is the splitmix64 finaliser; arithmetic modulo 2^64) by the tensor's rule:

    code8     e4m3 byte: sign = top bit of u, the other bits = low + u % span
    nibbles   packed fp4 byte: u & 255
    exponent  e8m0 byte of row r: base + u % 3 - 1, plus `boost` if boost_every > 0 and r % boost_every == 5
    fraction  F32 or BF16 value: offset + (u % (2 m + 1) - m) * step, exact in the dtype
    hash      I64 [rows, k]: (u(NAME, row) + column) % experts

The checksum of a recipe is, modulo 2^64, the sum over tensors of fnv1a64(NAME) * sum_i byte[i] * (i + 1).
tests/data/tiny_checkpoint.h is the same generator in C++.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from checkpoint import write_safetensors
from engram import bucket_primes

_COMMON = {
    "vocab_size": 256, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_lora_rank": 64, "o_groups": 2, "moe_intermediate_size": 128,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hidden_act": "silu", "sliding_window": 128, "rope_theta": 10000, "compress_rope_theta": 160000,
    "max_position_embeddings": 65536, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "index_n_heads": 4, "index_head_dim": 128, "index_topk": 16,
    "dspark_block_size": 5, "dspark_noise_token_id": 3, "dspark_markov_rank": 32,
}  # fmt: skip
_YARN = {"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}


def tiny_v41() -> dict:
    """config.json: window layer, ratio-2 owner and reader, ratio-1 owner (candidate source), masked re-indexer; 2 stages."""
    primes = bucket_primes(2, 3, 4, 128)
    text = {
        "model_type": "deepseek_v41_text", **_COMMON, "num_hidden_layers": 5, "rms_norm_eps": 1e-20,
        "rope_scaling": {"rope_type": "yarn", **_YARN}, "compress_ratios": [0, 2, 2, 1, 1, 0, 0],
        "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 4], "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 4, "candidate_block_size": 8, "engram_layer_ids": [1, 2],
        "engram_num_embeddings": [sum(p for o in layer for p in o) for layer in primes],
        "engram_max_ngram_size": 4, "engram_vocab_size": 128, "engram_n_heads": 4, "engram_head_dim": 32,
        "engram_pad_token_id": 2, "engram_compressed_vocab_size": 256, "num_nextn_predict_layers": 2,
        "dspark_target_layer_ids": [3, 4], "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2,
    }  # fmt: skip
    return {
        "model_type": "deepseek_v41", "architectures": ["DeepseekV41ForCausalLM"],
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        "text_config": text,
    }  # fmt: skip


def tiny_v4() -> dict:
    """config.json: hashed window layer, ratio 4, ratio 128, ratio 4; 2 stages."""
    return {
        "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "bos_token_id": 0, "eos_token_id": 1,
        **_COMMON, "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "rope_scaling": {"type": "yarn", **_YARN},
        "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "tie_word_embeddings": False,
        "compress_ratios": [0, 4, 128, 4, 0, 0], "num_hash_layers": 1, "num_nextn_predict_layers": 1,
        "expert_dtype": "fp4", "torch_dtype": "bfloat16", "dspark_target_layer_ids": [2, 3],
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    }  # fmt: skip


class Recipe:
    """Collects name -> (dtype, shape, rule) for one config; section B of spec/model.md gives the inventory."""

    def __init__(self, config: dict):
        self.v41 = config["model_type"] == "deepseek_v41"
        self.c = config["text_config"] if self.v41 else config
        self.block = config["quantization_config"]["weight_block_size"][0]
        self.tensors: dict[str, dict] = {}
        self._build()

    def put(self, name: str, dtype: str, shape: list[int], rule: str, **params) -> None:
        self.tensors[name] = {"dtype": dtype, "shape": shape, "rule": rule, **params}

    def fraction(self, name, dtype, shape, step_log2, m=128, offset=0.0):
        self.put(name, dtype, shape, "fraction", offset=offset, step=2.0**step_log2, m=m)

    def norm(self, name, n):
        self.fraction(name + ".weight", "BF16", [n], -7, m=64, offset=1.0)

    def fp8(self, name, out, k, base=0):
        """Rounded-to-unit gain for base 0: codes have rms 0.84, scales spread over a factor of four."""
        exponent = 127 - round(np.log2(k) / 2) + base
        self.put(name + ".weight", "F8_E4M3", [out, k], "code8", low=0x20, span=31)
        shape = [-(-out // self.block), -(-k // self.block)]
        self.put(name + ".scale", "F8_E8M0", shape, "exponent", base=exponent, boost_every=0, boost=0)

    def fp4(self, name, out, k, base=0, boost=0):
        exponent = 127 - round(np.log2(k) / 2) - 2 + base
        self.put(name + ".weight", "I8", [out, k // 2], "nibbles")
        every = 61 if boost else 0
        self.put(name + ".scale", "F8_E8M0", [out, k // 32], "exponent", base=exponent, boost_every=every, boost=boost)

    def mix(self, stem, dim):
        self.fraction(stem + "_fn", "F32", [24, 4 * dim], -10)
        self.fraction(stem + "_base", "F32", [24], -7)
        self.fraction(stem + "_scale", "F32", [3], -6, m=16, offset=0.75)

    def experts(self, p, experts, hashed):
        c, d, inter = self.c, self.c["hidden_size"], self.c["moe_intermediate_size"]
        self.fraction(p + ".gate.weight", "BF16", [experts, d], -9)
        if hashed:
            self.put(p + ".gate.tid2eid", "I64", [c["vocab_size"], c["num_experts_per_tok"]], "hash", experts=experts)
        else:
            self.fraction(p + ".gate.bias", "F32", [experts], -10)
        if self.v41:
            self.fraction(p + ".gate.bias_vl", "F32", [experts], -7)
        for e in range(experts):
            self.fp4(f"{p}.experts.{e}.w1", inter, d, boost=3)
            self.fp4(f"{p}.experts.{e}.w2", d, inter, base=-1)
            self.fp4(f"{p}.experts.{e}.w3", inter, d, boost=3)
        for name, out, k in (("w1", inter, d), ("w2", d, inter), ("w3", inter, d)):
            self.fp8(f"{p}.shared_experts.{name}", out, k, base=-1 if name == "w2" else 0)

    def block_tensors(self, p, experts, hashed=False):
        c, d, heads = self.c, self.c["hidden_size"], self.c["num_attention_heads"]
        self.mix(p + ".hc_attn", d)
        self.mix(p + ".hc_ffn", d)
        self.norm(p + ".attn_norm", d)
        self.norm(p + ".ffn_norm", d)
        a, q, low = p + ".attn", c["q_lora_rank"], c["o_groups"] * c["o_lora_rank"]
        self.fraction(a + ".attn_sink", "F32", [heads], -7)
        self.norm(a + ".q_norm", q)
        self.norm(a + ".kv_norm", 512)
        self.fp8(a + ".wq_a", q, d)
        self.fp8(a + ".wq_b", heads * 512, q)
        self.fp8(a + ".wkv", 512, d)
        self.fp8(a + ".wo_a", low, heads // c["o_groups"] * 512)
        self.fp8(a + ".wo_b", d, low, base=2)  # so that attention weighs as much as the experts in the stream
        self.experts(p + ".ffn", experts, hashed)

    def pool(self, p, ratio, width, norm, gate=True):
        d = self.c["hidden_size"]
        self.fraction(p + ".wkv.weight", "BF16", [width, d], -10)
        if gate:
            self.fraction(p + ".wgate.weight", "BF16", [width, d], -10)
        if not self.v41:
            self.fraction(p + ".ape", "F32", [ratio, width], -7)
        self.norm(p + ".norm", norm)

    def indexer(self, p):
        c = self.c
        self.fp8(p + ".wq_b", c["index_n_heads"] * 128, c["q_lora_rank"])
        self.fraction(p + ".weights_proj.weight", "BF16", [c["index_n_heads"], c["hidden_size"]], -9)

    def engram(self, p, rows):
        c, d = self.c, self.c["hidden_size"]
        columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
        self.put(p + ".embed.weight", "F8_E4M3", [rows, c["engram_head_dim"]], "code8", low=0x20, span=31)
        self.put(p + ".embed.scale", "F8_E8M0", [rows, c["engram_head_dim"] // 32], "exponent", base=127,
                 boost_every=0, boost=0)  # fmt: skip
        self.fp8(p + ".wkv", 5 * d, columns * c["engram_head_dim"])
        self.fraction(p + ".q_weight", "BF16", [4, d], -7, m=64, offset=1.0)
        self.fraction(p + ".k_weight", "BF16", [4, d], -7, m=64, offset=1.0)

    def _build(self):
        c, d, vocab = self.c, self.c["hidden_size"], self.c["vocab_size"]
        self.fraction("embed.weight", "BF16", [vocab, d], -7)
        self.fraction("head.weight", "BF16", [vocab, d], -8)
        self.norm("norm", d)
        for i in range(c["num_hidden_layers"]):
            p, ratio = f"layers.{i}", c["compress_ratios"][i]
            self.block_tensors(p, c["n_routed_experts"], hashed=i < c.get("num_hash_layers", 0))
            if self.v41:
                if i in c["kv_source_layer_ids"]:
                    self.pool(p + ".attn.compressor", ratio, 512, 512, gate=ratio > 1)
                    self.fraction(p + ".attn.indexer.wk.weight", "BF16", [128, 512], -11)
                    self.norm(p + ".attn.indexer.k_norm", 128)
                if i in c["index_source_layer_ids"]:
                    self.indexer(p + ".attn.indexer")
                if i in c["engram_layer_ids"]:
                    self.engram(p + ".engram", c["engram_num_embeddings"][c["engram_layer_ids"].index(i)])
            elif ratio:
                self.pool(p + ".attn.compressor", ratio, 1024 if ratio == 4 else 512, 512)
                if ratio == 4:
                    self.indexer(p + ".attn.indexer")
                    self.pool(p + ".attn.indexer.compressor", ratio, 256, 128)
        if not self.v41:
            self._merge("")
        self._drafter(d, vocab)

    def _merge(self, prefix):
        d = self.c["hidden_size"]
        self.fraction(prefix + "hc_head_fn", "F32", [4, 4 * d], -10)
        self.fraction(prefix + "hc_head_base", "F32", [4], -7)
        self.fraction(prefix + "hc_head_scale", "F32", [1], -6, m=16, offset=0.75)

    def _drafter(self, d, vocab):
        c, stages, rank = self.c, 2, self.c["dspark_markov_rank"]
        for s in range(stages):
            self.block_tensors(f"mtp.{s}", c.get("dspark_n_routed_experts", c["n_routed_experts"]))
        self.fp8("mtp.0.main_proj", d, len(c["dspark_target_layer_ids"]) * d)
        self.norm("mtp.0.main_norm", d)
        last = f"mtp.{stages - 1}"
        self.norm(last + ".norm", d)
        w1, w2 = ("embed", "head") if self.v41 else ("markov_w1", "markov_w2")
        self.fraction(f"{last}.markov_head.{w1}.weight", "BF16", [vocab, rank], -7)
        self.fraction(f"{last}.markov_head.{w2}.weight", "BF16", [vocab, rank], -8)
        self.fraction(last + ".confidence_head.proj.weight", "BF16", [1, d + rank], -9)
        if not self.v41:
            self._merge(last + ".")


def _fnv(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def _weighted(array: np.ndarray) -> int:
    """Sum of byte[i] * (i + 1) over the raw little-endian bytes of a tensor."""
    raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), dtype=np.uint8).astype(np.uint64)
    return int((raw * np.arange(1, raw.size + 1, dtype=np.uint64)).sum())


def _words(name: str, count: int) -> np.ndarray:
    h = _fnv(name.encode())
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def generate(name: str, t: dict) -> np.ndarray:
    """The raw array of one tensor of a recipe."""
    shape, rule = t["shape"], t["rule"]
    if rule == "hash":
        start = _words(name, shape[0])[:, None] + np.arange(shape[1], dtype=np.uint64)
        return (start % np.uint64(t["experts"])).astype(np.int64)
    u = _words(name, int(np.prod(shape))).reshape(shape)
    if rule == "code8":
        return ((u >> np.uint64(63) << np.uint64(7)) + t["low"] + u % np.uint64(t["span"])).astype(np.uint8)
    if rule == "nibbles":
        return (u & np.uint64(255)).astype(np.uint8)
    if rule == "exponent":
        values = (u % np.uint64(3)).astype(np.int64) + t["base"] - 1
        if t["boost_every"]:
            values[5 :: t["boost_every"]] += t["boost"]
        return values.astype(np.uint8)
    steps = (u % np.uint64(2 * t["m"] + 1)).astype(np.int64) - t["m"]
    values = (t["offset"] + steps * t["step"]).astype(np.float32)
    if t["dtype"] == "BF16":
        bits = values.view(np.uint32)
        assert not (bits & 0xFFFF).any(), f"{name}: not exact in bf16"
        return (bits >> 16).astype(np.uint16)
    return values


def write_model(config: dict, directory: Path) -> dict:
    """Writes config.json and model.safetensors; returns the manifest (recipe and digest) the C++ test builds from."""
    recipe = Recipe(config).tensors
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    arrays = {name: (t["dtype"], generate(name, t)) for name, t in recipe.items()}
    write_safetensors(directory / "model.safetensors", arrays)
    check = sum(_fnv(name.encode()) * _weighted(arrays[name][1]) for name in arrays) % 2**64
    return {"checksum": f"{check:016x}", "tensors": recipe}


if __name__ == "__main__":
    for label, config in (("tiny_v41", tiny_v41()), ("tiny_v4", tiny_v4())):
        out = Path(sys.argv[1]) / label
        write_model(config, out)
        print(out, (out / "model.safetensors").stat().st_size)
