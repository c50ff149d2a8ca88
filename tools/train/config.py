"""Model description shared by the training tools: one `Spec` for both generations, read from `config.json`.

V4 configs are flat, V4.1 configs are nested (`text_config`); spec/model.md 1.1 and 1.2 list the keys. Only this file
knows the difference, everything else asks the Spec.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Spec:
    generation: str  # "v4" or "v41"
    vocab: int
    dim: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    inter: int
    experts: int
    top_k: int
    route_scale: float
    clamp: float
    eps: float
    window: int
    rope_theta: float
    compress_theta: float
    rope_scaling: dict
    ratios: list[int]  # one entry per backbone layer, 0 = window only
    hc: int
    hc_iters: int
    hc_eps: float
    index_heads: int
    index_dim: int
    index_topk: int
    block: int  # side of the fp8 weight scale grid, also the activation quantisation block
    hash_layers: int
    kv_sources: list[int]
    index_sources: list[int]
    candidate_source: int  # -1: none
    candidate_blocks: int
    candidate_block: int
    engram_layers: list[int]
    engram_ngram: int
    engram_vocab: int
    engram_heads: int
    engram_dim: int
    engram_pad: int
    engram_compressed_vocab: int
    draft_stages: int
    draft_block: int
    draft_noise: int
    draft_taps: list[int]
    draft_rank: int
    draft_experts: int
    draft_top_k: int
    raw: dict = field(repr=False, default_factory=dict)

    @property
    def v41(self) -> bool:
        return self.generation == "v41"

    def kv_owner(self, layer: int) -> int:
        """Layer whose compressed KV `layer` reads; -1 for a window-only layer (spec 3.5)."""
        if self.ratios[layer] == 0:
            return -1
        return max(s for s in self.kv_sources if s <= layer) if self.v41 else layer

    def index_owner(self, layer: int) -> int:
        """Layer whose indexer picks entries for `layer`; -1 when every visible entry is attended."""
        if self.ratios[layer] == 0:
            return -1
        if self.v41:
            return max(s for s in self.index_sources if s <= layer)
        return layer if self.ratios[layer] == 4 else -1


def load_spec(path: str | Path) -> Spec:
    """Reads `config.json` (or a directory holding one). KeyError names a missing field."""
    path = Path(path)
    raw = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    nested = "text_config" in raw
    c = raw["text_config"] if nested else raw
    layers = c["num_hidden_layers"]
    ratios = c["compress_ratios"]
    # V4 configs say num_nextn_predict_layers 1 even with several DSpark stages; the ratio list has one entry per stage.
    stages = c["num_nextn_predict_layers"] if nested else len(ratios) - layers
    if len(ratios) != layers + stages:
        raise ValueError(f"{path}: compress_ratios has {len(ratios)} entries, want {layers} layers + {stages} stages")
    return Spec(
        generation="v41" if nested else "v4", vocab=c["vocab_size"], dim=c["hidden_size"], layers=layers,
        heads=c["num_attention_heads"], head_dim=c["head_dim"], rope_dim=c["qk_rope_head_dim"], q_lora=c["q_lora_rank"],
        o_lora=c["o_lora_rank"], o_groups=c["o_groups"], inter=c["moe_intermediate_size"], experts=c["n_routed_experts"],
        top_k=c["num_experts_per_tok"], route_scale=c["routed_scaling_factor"], clamp=c["swiglu_limit"],
        eps=c["rms_norm_eps"], window=c["sliding_window"], rope_theta=c["rope_theta"],
        compress_theta=c["compress_rope_theta"], rope_scaling=c["rope_scaling"], ratios=ratios[:layers],
        hc=c["hc_mult"], hc_iters=c["hc_sinkhorn_iters"], hc_eps=c["hc_eps"], index_heads=c["index_n_heads"],
        index_dim=c["index_head_dim"], index_topk=c["index_topk"],
        block=raw["quantization_config"]["weight_block_size"][0], hash_layers=c.get("num_hash_layers", 0),
        kv_sources=c.get("kv_source_layer_ids", []), index_sources=c.get("index_source_layer_ids", []),
        candidate_source=c.get("candidate_source_layer_id", -1), candidate_blocks=c.get("candidate_topk_blocks", 0),
        candidate_block=c.get("candidate_block_size", 8), engram_layers=c.get("engram_layer_ids", []),
        engram_ngram=c.get("engram_max_ngram_size", 0), engram_vocab=c.get("engram_vocab_size", 0),
        engram_heads=c.get("engram_n_heads", 0), engram_dim=c.get("engram_head_dim", 0),
        engram_pad=c.get("engram_pad_token_id", 2), engram_compressed_vocab=c.get("engram_compressed_vocab_size", 0),
        draft_stages=stages, draft_block=c["dspark_block_size"], draft_noise=c["dspark_noise_token_id"],
        draft_taps=c["dspark_target_layer_ids"], draft_rank=c["dspark_markov_rank"],
        draft_experts=c.get("dspark_n_routed_experts", c["n_routed_experts"]),
        draft_top_k=c.get("dspark_num_experts_per_tok", c["num_experts_per_tok"]), raw=raw)
