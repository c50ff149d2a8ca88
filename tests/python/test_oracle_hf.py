"""The oracle's V4 path, unquantised, against Hugging Face: stored logits always, the library itself where installed."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # spinning threads on a busy machine cost more than they give at this size
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "oracle"))

import check_hf  # noqa: E402


@pytest.mark.parametrize("case", sorted(check_hf.CASES))
def test_stored_logits(case):
    assert check_hf.stored_error(case) < check_hf.LIMIT


@pytest.mark.parametrize("seed,case", list(enumerate(check_hf.CASES)))
def test_library(seed, case):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "DeepseekV4ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no DeepseekV4ForCausalLM")
    prefill, decode, _, _ = check_hf.compare(case, 200 + seed)
    assert max(prefill, decode) < check_hf.LIMIT
