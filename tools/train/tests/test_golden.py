"""One-layer checks of the training model against stored vectors of the V4.1 reference semantics (skipped where absent)."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import export  # noqa: E402
from config import load_spec  # noqa: E402
from model import Model  # noqa: E402

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "data" / "v41_golden"
pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN} is absent")


@pytest.fixture(scope="module")
def model():
    m = Model(load_spec(GOLDEN))
    export.import_tensors(m, export.read_safetensors(GOLDEN / "model.safetensors"))
    return m


def vectors(n: int) -> dict:
    return {k: t for k, (_, t) in export.read_safetensors(GOLDEN / f"golden_prompt{n}.safetensors").items()}


def padded(ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(ids, (0, -len(ids) % 128), value=2)[None]


def layer_errors(model, n: int) -> list[tuple[float, float]]:
    """(rms, median row max) of every layer started from the stored stream of the layer before."""
    g = vectors(n)
    ids = padded(g["token_ids"][:n])
    c = model.context(ids, select=True)
    x, pre = model.start(c)
    out = []
    for layer in range(model.spec.layers):
        if layer:
            x = torch.nn.functional.pad(g[f"layers.{layer - 1}.x_all"], (0, 0, 0, 0, 0, ids.shape[1] - n))
            pre = torch.nn.functional.pad(g[f"layers.{layer - 1}.next_pre_all"], (0, 0, 0, ids.shape[1] - n))
        y, next_pre = model.layer(layer, x, pre, c)
        diff = y[:n].float() - g[f"layers.{layer}.x_all"].float()
        out.append((diff.square().mean().sqrt().item(), diff.flatten(1).abs().amax(1).median().item()))
    return out


@torch.no_grad()
def test_engram_rows(model):
    g = vectors(401)
    for i, layer in enumerate(model.spec.engram_layers):
        assert torch.equal(model.engram_row_ids(g["token_ids"][None, :401].long(), layer), g["engram.row_ids"][:, i].long())


@torch.no_grad()
@pytest.mark.parametrize("n, limit", [(37, 1e-2), (401, 3e-2)])
def test_layers(model, n, limit):
    errors = layer_errors(model, n)
    print(n, [f"{r:.1e}/{m:.1e}" for r, m in errors])
    assert max(r for r, _ in errors) < limit


@torch.no_grad()
def test_logits(model):
    g = vectors(37)
    out = model.forward(padded(g["token_ids"][:37]), select=True)
    logits = model.logits(out.hidden)[:37]
    rms = (logits - g["logits"]).square().mean().sqrt().item()
    print("logit rms", rms, "argmax equal", (logits.argmax(-1) == g["logits"].argmax(-1)).float().mean().item())
    assert rms < 0.5
