"""The oracle against itself on the tiny checkpoints: decode, chunks, deliberate mistakes, stored vectors, number formats."""

import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # spinning threads on a busy machine cost more than they give at this size

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(ROOT / "tools" / "oracle"))

import numerics as nm  # noqa: E402
import tiny  # noqa: E402
from checkpoint import read_safetensors  # noqa: E402
from engram import multipliers, normalise  # noqa: E402
from model import Model  # noqa: E402
from rope import frequencies  # noqa: E402


@pytest.fixture(scope="module", params=["v41", "v4"])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    config = tiny.tiny_v41() if request.param == "v41" else tiny.tiny_v4()
    manifest = tiny.write_model(config, folder)
    assert f'"checksum": "{manifest["checksum"]}"' in (DATA / request.param / "recipe.json").read_text()
    return folder, request.param


def run(folder, ids, pieces=(), **switches):
    model = Model.load(folder, **switches)
    seq, out, at = model.new_sequence(), [], 0
    for size in [*pieces, len(ids) - sum(pieces)]:
        out.append(model.forward(ids[at : at + size], seq))
        at += size
    return torch.cat(out)


@pytest.mark.parametrize("prompt", [250, 21])
def test_stored_end_to_end(checkpoint, prompt):
    folder, label = checkpoint
    data = read_safetensors(DATA / label / f"end_to_end_{prompt}.safetensors")
    logits = run(folder, data["token_ids"][: prompt + 12].tolist(), [prompt])
    at = data["prefill.positions"].long()
    for mine, stored in ((logits[at], data["prefill.logits"]), (logits[prompt:], data["decode.logits"])):
        assert (mine - stored).square().mean().sqrt() < 2e-2 * stored.square().mean().sqrt()
        assert (mine.argmax(1) == stored.argmax(1)).float().mean() >= 0.9


def test_pieces_equal_one_prefill(checkpoint):
    folder, label = checkpoint
    ids = read_safetensors(DATA / label / "end_to_end_250.safetensors")["token_ids"][:262].tolist()
    whole = run(folder, ids)
    for pieces in ([1] * 9, [3, 7, 121, 1, 1, 64], [127, 1, 1, 126]):
        assert torch.equal(run(folder, ids, pieces), whole), pieces


def test_mistakes_change_logits(checkpoint):
    folder, label = checkpoint
    ids = read_safetensors(DATA / label / "end_to_end_250.safetensors")["token_ids"][:160].tolist()
    right = run(folder, ids)
    variants = ["transposed_comb", "no_inverse_rope", "table_a"] + (["own_pre", "no_engram"] if label == "v41" else [])
    for variant in variants:
        wrong = run(folder, ids, variant=variant)
        assert (wrong - right).square().mean().sqrt() > 0.1 * right.square().mean().sqrt(), variant


def test_selection_is_real(checkpoint):
    _, label = checkpoint
    data = read_safetensors(DATA / label / "index.safetensors")
    for name, picks in data.items():
        if name.endswith("index.picks"):
            scores = data[name.replace("picks", "scores")]
            assert int(torch.isfinite(scores[-1]).sum()) > 2 * int((picks[-1] >= 0).sum())


def test_stored_records_decode_to_what_attention_used(checkpoint):
    _, label = checkpoint
    t = read_safetensors(DATA / label / "project_qkv.safetensors")
    data, scale, rotated = t["layers.1.kv_data"], t["layers.1.kv_scale"], t["layers.1.kv_rotated"]
    if label == "v41":
        assert data.shape[1] + scale.shape[1] == 528
        assert torch.equal(nm.dequantise_fp8(data, scale), nm.dequantise_fp8(*nm.quantise_fp8(rotated, 32)))
    else:
        assert data.shape[1] + scale.shape[1] == 584 and not scale[:, 7].any()
        assert torch.equal(data[:, 448:].contiguous().view(torch.int16), rotated[:, 448:].contiguous().view(torch.int16))


def test_e2m1_ties_and_every_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert nm.e2m1_decode(nm.e2m1_encode(ties)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(nm.e2m1_encode(nm.e2m1_decode(codes)), codes)
    assert torch.equal(nm.unpack_nibbles(nm.pack_nibbles(codes)), codes)


def test_scale_is_the_exact_power_of_two():
    for amax in (448.0, 448.0 * (1 + 2**-22), 1.0, 1e-4, 0.0, 3e38):
        x = torch.zeros(1, 32)
        x[0, 3] = amax
        _, scale = nm.quantise_fp8(x, 32)
        ratio = (torch.tensor(max(amax, 1e-4)) * torch.tensor(1 / 448)).item()
        assert int(scale) - 127 == math.ceil(math.log2(ratio))


def test_yarn_table():
    f = frequencies(64, 160000, {"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536})
    for i, value in {0: 1.0, 1: 0.68765602, 16: 2.265625e-3, 20: 2.9697778e-4, 25: 5.3723127e-6, 31: 5.6805290e-7}.items():
        assert f[i].item() == pytest.approx(value, rel=1e-6)


def test_engram_constants():
    assert multipliers(1, 4, 99092).tolist() == [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert multipliers(14, 4, 99092).tolist() == [67716810739261, 51510806800915, 30921347202721, 82619226485591]


def test_normaliser_equals_the_tokenizers_library():
    normalizers = pytest.importorskip("tokenizers").normalizers
    from tokenizers import Regex

    theirs = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), "\ue000"), normalizers.Strip(),
        normalizers.Replace("\ue000", " "),
    ])  # fmt: skip
    blocks = [range(0x20, 0x250), range(0x370, 0x600), range(0x900, 0xA00), range(0x1E00, 0x2100), range(0x3000, 0x3100),
              range(0xFB00, 0xFB50), range(0xFF00, 0xFFF0)]  # fmt: skip
    singles = [chr(c) for block in blocks for c in block]
    for text in singles + [" ", "\n\t", " a", "a  b ", "Straße ΣΑΣ", "É\u0301x", "ﬁ", "\x1fa\x1f", "", "İ"]:
        assert normalise(text) == (theirs.normalize_str(text) or text), repr(text)
