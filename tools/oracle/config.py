"""config.json of both generations -> one description (spec/model.md section 1)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class BlockSpec:
    """One transformer block: a backbone layer or a draft stage."""

    prefix: str  # "layers.3" or "mtp.0"
    index: int
    ratio: int = 0  # 0: sliding window only
    owns_kv: bool = False  # has a compressor
    kv_owner: int = -1
    owns_index: bool = False  # has an indexer
    index_owner: int = -1
    candidate_source: bool = False
    candidate_reader: bool = False
    hashed: bool = False
    engram: int = -1  # ordinal among the Engram layers
    experts: int = 0
    top_k: int = 0


@dataclass
class ModelSpec:
    generation: str  # "v4" or "v41"
    vocab: int
    dim: int
    heads: int
    head_dim: int
    rope_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: dict
    route_scale: float
    swiglu_limit: float
    hc_mult: int
    hc_iters: int
    hc_eps: float
    index_heads: int
    index_dim: int
    index_topk: int
    weight_block: int
    layers: list[BlockSpec] = field(default_factory=list)
    stages: list[BlockSpec] = field(default_factory=list)
    candidate_blocks: int = 0
    candidate_block_size: int = 8
    engram: dict = field(default_factory=dict)
    draft_block: int = 0
    noise_id: int = 0
    tap_layers: list[int] = field(default_factory=list)
    pad_id: int = 2

    @property
    def v41(self) -> bool:
        return self.generation == "v41"


def load_config(directory: str | Path, tensor_names: set[str] | None = None) -> ModelSpec:
    """Reads DIR/config.json. The number of draft stages comes from the tensor names (V4 configs say 1 where 3 exist)."""
    raw = json.loads((Path(directory) / "config.json").read_text())
    return parse_config(raw, tensor_names or set())


def parse_config(raw: dict, tensor_names: set[str]) -> ModelSpec:
    kind = raw.get("model_type")
    if kind == "deepseek_v41":
        generation, text = "v41", raw["text_config"]
    elif kind == "deepseek_v4":
        generation, text = "v4", raw
    else:
        raise ValueError(f"config.json: model_type {kind!r} is neither 'deepseek_v4' nor 'deepseek_v41'")
    spec = ModelSpec(
        generation=generation,
        vocab=text["vocab_size"],
        dim=text["hidden_size"],
        heads=text["num_attention_heads"],
        head_dim=text["head_dim"],
        rope_dim=text["qk_rope_head_dim"],
        q_lora=text["q_lora_rank"],
        o_lora=text["o_lora_rank"],
        o_groups=text["o_groups"],
        window=text["sliding_window"],
        eps=text["rms_norm_eps"],
        rope_theta=text["rope_theta"],
        compress_rope_theta=text["compress_rope_theta"],
        rope_scaling=text["rope_scaling"],
        route_scale=text["routed_scaling_factor"],
        swiglu_limit=text["swiglu_limit"],
        hc_mult=text["hc_mult"],
        hc_iters=text["hc_sinkhorn_iters"],
        hc_eps=text["hc_eps"],
        index_heads=text["index_n_heads"],
        index_dim=text["index_head_dim"],
        index_topk=text["index_topk"],
        weight_block=raw["quantization_config"]["weight_block_size"][0] if "quantization_config" in raw else 128,
        draft_block=text.get("dspark_block_size", 0),
        noise_id=text.get("dspark_noise_token_id", 0),
        tap_layers=sorted(text.get("dspark_target_layer_ids", [])),
        pad_id=text.get("engram_pad_token_id", raw.get("pad_token_id", 2)),
    )
    _add_layers(spec, text)
    names = {n.split(".")[1] for n in tensor_names if n.startswith("mtp.")}
    for s in range(len(names)):
        experts = text.get("dspark_n_routed_experts", text["n_routed_experts"])
        top_k = text.get("dspark_num_experts_per_tok", text["num_experts_per_tok"])
        spec.stages.append(BlockSpec(prefix=f"mtp.{s}", index=s, experts=experts, top_k=top_k))
    return spec


def _add_layers(spec: ModelSpec, text: dict) -> None:
    engram_layers = text.get("engram_layer_ids", [])
    kv_sources = text.get("kv_source_layer_ids", [])
    index_sources = text.get("index_source_layer_ids", [])
    candidate = text.get("candidate_source_layer_id", -1)
    for i in range(text["num_hidden_layers"]):
        b = BlockSpec(prefix=f"layers.{i}", index=i, ratio=text["compress_ratios"][i])
        b.experts, b.top_k = text["n_routed_experts"], text["num_experts_per_tok"]
        if spec.v41 and b.ratio:
            b.kv_owner = max(s for s in kv_sources if s <= i)
            b.index_owner = max(s for s in index_sources if s <= i)
            b.owns_kv, b.owns_index = b.kv_owner == i, b.index_owner == i
            b.candidate_source = i == candidate
            b.candidate_reader = b.owns_index and 0 <= candidate < i
        elif b.ratio:
            b.kv_owner, b.owns_kv = i, True
            b.owns_index = b.ratio == 4
            b.index_owner = i if b.owns_index else -1
        b.hashed = not spec.v41 and i < text.get("num_hash_layers", 0)
        if i in engram_layers:
            b.engram = engram_layers.index(i)
        spec.layers.append(b)
    if spec.v41:
        spec.candidate_blocks = text["candidate_topk_blocks"]
        spec.candidate_block_size = text["candidate_block_size"]
        if engram_layers:
            spec.engram = {k[len("engram_"):]: v for k, v in text.items() if k.startswith("engram_")}
