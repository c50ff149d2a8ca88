#!/usr/bin/env python3
"""Holds the oracle's V4 path, unquantised and in fp32, against Hugging Face `DeepseekV4ForCausalLM` (transformers 5.17).

    check_hf.py            compares logits on random small models, prefill and cached decode
    check_hf.py --write    also stores weights, tokens and HF's logits in tests/data/hf/*.safetensors

Traps: HF folds `compress_ratios` into layer types and keeps no list of its own, so the raw dict goes to the oracle; YaRN's
attention factor must be 1.0 (HF sets it for this model; generic code would scale cos and sin by 1.277); HF puts the routing
weight after w2, which is the same number only because nothing is quantised here; with few indexer heads many scores are
exactly 0 (every head's product negative), torch.topk then picks any of them, hence 16 heads below.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from checkpoint import Checkpoint, raw_array, read_safetensors, write_safetensors
from config import parse_config
from model import Model
from numerics import BF16

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "hf"
LIMIT = 1e-4  # on logits of standard deviation about 1

_BASE = {
    "model_type": "deepseek_v4", "vocab_size": 32, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 32, "qk_rope_head_dim": 16, "q_lora_rank": 16, "o_lora_rank": 8, "o_groups": 2,
    "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "sliding_window": 32, "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 256},
    "max_position_embeddings": 4096, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "index_n_heads": 16,
    "index_head_dim": 32, "index_topk": 8, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
CASES = {
    # All three kinds of layer, hashed routing, real selection (65 entries, 8 picked), two ratio-128 entries.
    "all_ratios": ({**_BASE, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4], "num_hash_layers": 1}, 270),
    # Another order, no hashing, one output group, clamps that bite, everything picked.
    "one_group": (
        {**_BASE, "num_hidden_layers": 3, "compress_ratios": [128, 4, 0], "num_hash_layers": 0, "o_groups": 1,
         "index_topk": 64, "swiglu_limit": 0.5, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5}, 150,
    ),
    # Two hashed layers, ratio 4 twice in a row, shorter than the window.
    "short": ({**_BASE, "num_hidden_layers": 3, "compress_ratios": [4, 4, 0], "num_hash_layers": 2, "index_topk": 4}, 30),
}  # fmt: skip

_RENAME = [
    ("model.embed_tokens.", "embed."), ("lm_head.", "head."), ("model.norm.", "norm."), ("model.hc_head.hc_", "hc_head_"),
    ("model.layers.", "layers."), (".self_attn.compressor.indexer.scorer.weights_proj", ".attn.indexer.weights_proj"),
    (".self_attn.compressor.indexer.q_b_proj", ".attn.indexer.wq_b"),
    (".self_attn.compressor.indexer.", ".attn.indexer.compressor."), (".self_attn.", ".attn."),
    (".compressor.kv_proj", ".compressor.wkv"), (".compressor.gate_proj", ".compressor.wgate"),
    (".compressor.position_bias", ".compressor.ape"), (".compressor.kv_norm", ".compressor.norm"),
    (".q_a_proj", ".wq_a"), (".q_b_proj", ".wq_b"), (".attn.kv_proj", ".attn.wkv"), (".o_a_proj", ".wo_a"),
    (".o_b_proj", ".wo_b"), (".q_a_norm", ".q_norm"), (".sinks", ".attn_sink"), (".mlp.", ".ffn."),
    (".gate.e_score_correction_bias", ".gate.bias"), (".shared_experts.gate_proj", ".shared_experts.w1"),
    (".shared_experts.up_proj", ".shared_experts.w3"), (".shared_experts.down_proj", ".shared_experts.w2"),
    (".attn_hc.", ".hc_attn_"), (".ffn_hc.", ".hc_ffn_"), (".input_layernorm", ".attn_norm"),
    (".post_attention_layernorm", ".ffn_norm"),
]  # fmt: skip


def published_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """HF state dict -> the names of the official checkpoint, experts unstacked."""
    out = {}
    for name, t in state.items():
        for old, new in _RENAME:
            name = name.replace(old, new)
        if name.endswith(".experts.gate_up_proj"):
            stem = name.removesuffix(".gate_up_proj")
            for e in range(t.shape[0]):
                out[f"{stem}.{e}.w1.weight"], out[f"{stem}.{e}.w3.weight"] = t[e].chunk(2)
        elif name.endswith(".experts.down_proj"):
            for e in range(t.shape[0]):
                out[f"{name.removesuffix('.down_proj')}.{e}.w2.weight"] = t[e]
        else:
            out[name] = t
    return out


def random_hf(raw: dict, seed: int):
    """HF model with every parameter and buffer drawn from `seed`, bf16-exact so that it can be stored small."""
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    config = DeepseekV4Config(**{k: v for k, v in raw.items() if k != "model_type"}, attn_implementation="eager")
    hf = DeepseekV4ForCausalLM(config).float().eval()
    g = torch.Generator().manual_seed(seed)
    for name, t in hf.state_dict().items():
        if name.endswith("tid2eid"):
            value = torch.stack([torch.randperm(raw["n_routed_experts"], generator=g)[: t.shape[1]] for _ in range(t.shape[0])])
        else:
            value = torch.randn(t.shape, generator=g)
            if t.dim() > 1:
                value *= t.shape[-1] ** -0.5 if "position_bias" not in name else 1.0
            elif "norm" in name or name.endswith("scale"):
                value = 1 + 0.3 * value
            if "embed" in name:
                value *= t.shape[-1] ** 0.5
            value = value.to(BF16).float()
        t.copy_(value)
    return hf


def oracle(raw: dict, tensors: dict[str, torch.Tensor]) -> Model:
    floats = {k: v.float() if v.dtype == BF16 else v for k, v in tensors.items()}
    return Model(Checkpoint(floats), parse_config(raw, set(floats)), quantised=False)


@torch.no_grad()
def compare(label: str, seed: int) -> tuple[float, float, dict, dict]:
    """-> (prefill error, cached decode error, published-name tensors, tokens and HF logits), errors max absolute."""
    raw, length = CASES[label]
    hf = random_hf(raw, seed)
    tensors = published_names(hf.state_dict())
    ids = torch.randint(0, raw["vocab_size"], (length,), generator=torch.Generator().manual_seed(seed + 1))
    expected = hf(ids.unsqueeze(0), use_cache=False).logits[0]
    mine = oracle(raw, tensors)
    got = mine.forward(ids, mine.new_sequence())
    error = (got - expected).abs().max().item()

    split, seq, decode = length - 10, mine.new_sequence(), 0.0
    cached = hf(ids[:split].unsqueeze(0), use_cache=True)
    mine.forward(ids[:split], seq)
    for i in range(split, length):
        cached = hf(ids[i : i + 1].unsqueeze(0), past_key_values=cached.past_key_values, use_cache=True)
        decode = max(decode, (mine.forward(ids[i : i + 1], seq)[0] - cached.logits[0, 0]).abs().max().item())
    print(f"{label}: logits std {expected.std():.2f}, prefill of {length}: {error:.1e}, 10 decode steps: {decode:.1e}")
    return error, decode, tensors, {"token_ids": ids, "logits": expected}


def store(label: str, tensors: dict, results: dict) -> None:
    """One file: weights (BF16; tid2eid I64) under their published names, token_ids, logits; config in the metadata."""
    out = {k: raw_array(v if v.dtype == torch.int64 else v.to(BF16)) for k, v in tensors.items()}
    out["token_ids"] = raw_array(results["token_ids"])
    out["logits"] = raw_array(results["logits"])
    DATA.mkdir(parents=True, exist_ok=True)
    path = DATA / f"{label}.safetensors"
    write_safetensors(path, out)
    (DATA / f"{label}.json").write_text(json.dumps(CASES[label][0], indent=1) + "\n")
    print(path.stat().st_size, path)


def stored_error(label: str) -> float:
    """Largest logit difference between the oracle and the stored HF logits."""
    tensors = read_safetensors(DATA / f"{label}.safetensors")
    ids, logits = tensors.pop("token_ids"), tensors.pop("logits")
    model = oracle(json.loads((DATA / f"{label}.json").read_text()), tensors)
    return (model.forward(ids, model.new_sequence()) - logits).abs().max().item()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", action="store_true")
    args = p.parse_args()
    for seed, case in enumerate(CASES):
        error, decode, weights, found = compare(case, 100 + seed)
        if max(error, decode) > LIMIT:
            raise SystemExit(f"{case}: above {LIMIT}")
        if args.write:
            store(case, weights, found)
            print(f"{case}: stored vectors reproduce to {stored_error(case):.1e}")
