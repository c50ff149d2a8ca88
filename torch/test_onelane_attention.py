"""Tests of the PyTorch operators, on the CPU and, where there is a GPU, on it. README.md says how to run them."""

import pytest
import torch
from attention_reference import DIM, Cache, EntryList, attention, e4m3, e8m0, fp8_scale_codes, plain_fp8

import onelane_attention

SCALE = DIM**-0.5
INT_MAX = 2**31 - 1
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
NAMES = ("window", "extra")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def entry_list(format, rows, width, generator, page_size=16, gap=0, lengths="random"):
    """A list as a server makes them: some -1, garbage past the length, NaN in every record that no row attends to."""
    cache = Cache(format, width // page_size + 3, page_size, generator, gap)
    indices = torch.randint(0, cache.records, (rows, width), generator=generator, dtype=torch.int32)
    indices[torch.rand(rows, width, generator=generator) < 0.1] = -1
    some = None
    if lengths == "random":
        some = torch.randint(0, width + 1, (rows,), generator=generator, dtype=torch.int32)
        some[0] = width
        if rows > 2:
            some[1:3] = torch.tensor([width + 100, -7])
        for row in range(rows):
            indices[row, max(0, int(some[row])) :] = INT_MAX
    indices[0, width // 2] = cache.records  # one past the end, within the length
    made = EntryList(cache, indices, some)
    cache.poison(torch.cat([made.entries(row) for row in range(rows)]))
    return made


class Case:
    """Inputs of a call, on the CPU."""

    def __init__(
        self, window="v4", extra="v4", rows=5, heads=16, widths=(64, 96), rope=True, sink="random", seed=1, **of_lists
    ):
        generator = torch.Generator().manual_seed(seed)
        self.q = torch.randn(rows, heads, DIM, generator=generator).clamp(-2, 2).bfloat16()
        self.lists = {
            name: entry_list(format, rows, width, generator, **of_lists)
            for name, format, width in zip(NAMES, (window, extra), widths)
            if format is not None
        }
        self.sink = self.positions = self.cos_sin = None
        if sink == "random":
            self.sink = torch.randn(heads, generator=generator)
            self.sink[::5], self.sink[1::5] = torch.inf, -torch.inf
        if rope:
            angles = torch.rand(40, 32, generator=generator) * 6.3
            self.cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
            self.positions = torch.randint(0, 40, (rows,), generator=generator, dtype=torch.int32)
            self.positions[0] = 1000  # clamped

    def reference(self):
        return attention(self.q, list(self.lists.values()), SCALE, self.sink, self.positions, self.cos_sin)

    def arguments(self, device):
        """Keyword arguments of sparse_mla_decode."""
        named = {"q": self.q, "sink": self.sink, "positions": self.positions, "cos_sin": self.cos_sin}
        for name in NAMES:
            one = self.lists.get(name)
            named[f"{name}_cache"] = None if one is None else one.cache.bytes
            named[f"{name}_indices"] = None if one is None else one.indices
            named[f"{name}_lengths"] = None if one is None else one.lengths
        named = {name: None if each is None else each.to(device) for name, each in named.items()}
        for name, one in self.lists.items():
            named |= {f"{name}_format": one.cache.format, f"{name}_page_size": one.cache.page_size}
        return named | {"scale": SCALE}


def check(output, result, reference):
    """Holds a call's three outputs against float64, by element and as a whole."""
    out, scales, lse = (None if each is None else each.cpu() for each in result)
    expected, expected_lse = reference
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-6, rtol=8.01 / 65536)
    noise = 0.02 * expected.square().mean(-1, keepdim=True).sqrt()
    if output == "bf16":
        assert scales is None
        got, bound = out.double(), expected.abs() / 256 + noise
        assert (got - expected).norm() <= 3e-3 * expected.norm()
    else:
        codes, scales = plain_fp8(output, out, scales)
        step = e8m0(scales)[..., None].expand(*scales.shape, 32).flatten(-2)
        got, bound = e4m3(codes) * step, expected.abs() / 16 + step / 1024 + noise
        apart = (scales.long() - fp8_scale_codes(expected)).abs()
        assert apart.max() <= 1 and (apart > 0).double().mean() < 0.01
    assert got.isfinite().all()
    worst = ((got - expected).abs() - bound).max()
    assert worst <= 0, f"an element is off by {worst:.2e} more than it may"


def same(a, b):
    for left, right in zip(a, b):
        assert (left is None) == (right is None)
        if left is not None:
            assert torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


FORMATS = [
    ("v4", "v4"),
    ("v41_fp8", "v41_fp4"),
    ("bf16", "bf16"),
    ("v41_fp8", "v41_fp8"),
    ("v4", None),
    (None, "v41_fp4"),
]


@pytest.mark.parametrize("output", onelane_attention.OUTPUTS)
@pytest.mark.parametrize("window,extra", FORMATS)
def test_formats_and_outputs(device, window, extra, output):
    case = Case(window, extra)
    check(output, onelane_attention.sparse_mla_decode(**case.arguments(device), output=output), case.reference())


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
def test_heads(device, heads):
    case = Case("v41_fp8", "v41_fp4", rows=3, heads=heads, widths=(128, 512) if device == "cuda" else (48, 32))
    arguments = case.arguments(device)
    check("fp8_grouped", onelane_attention.sparse_mla_decode(**arguments, output="fp8_grouped"), case.reference())


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_rows_and_whole_widths(device, rows):
    case = Case(rows=rows, heads=8, widths=(33, 50), lengths=None, rope=False, sink=None)
    check("bf16", onelane_attention.sparse_mla_decode(**case.arguments(device)), case.reference())


@pytest.mark.parametrize("page_size,gap", [(1, 0), (2, 0), (53, 48), (64, 576), (256, 0)])
def test_page_sizes_and_gaps(device, page_size, gap):
    case = Case(page_size=page_size, gap=gap, widths=(128, 60))
    check("bf16", onelane_attention.sparse_mla_decode(**case.arguments(device)), case.reference())


@pytest.mark.parametrize("sink", [-torch.inf, torch.inf, 1e30, -1e30])
def test_one_sink_for_all(device, sink):
    case = Case(sink=None)
    case.sink = torch.full((16,), sink)
    out, scales, lse = onelane_attention.sparse_mla_decode(**case.arguments(device))
    check("bf16", (out, scales, lse), case.reference())
    if sink > 0:
        assert (out == 0).all()


def test_rows_without_entries(device):
    case = Case()
    for one in case.lists.values():
        one.lengths[:] = torch.tensor([0, -1, one.indices.shape[1], 0, 0])
        one.indices[2] = -1
    out, _, lse = onelane_attention.sparse_mla_decode(**case.arguments(device))
    assert (out == 0).all() and (lse == torch.inf).all()


def test_no_rows(device):
    arguments = Case().arguments(device)
    for name in ("q", "window_indices", "window_lengths", "extra_indices", "extra_lengths", "positions"):
        arguments[name] = arguments[name][:0]
    out, scales, lse = onelane_attention.sparse_mla_decode(**arguments, output="fp8_grouped")
    assert out.shape == (0, 2, 4096) and scales.shape == (2, 32, 0) and lse.shape == (0, 16)


def test_views(device):
    """What engines have: records as a dim or two, parts of a bigger pool, [rows, 1, width] of a wider table."""
    case = Case(page_size=16)
    arguments = case.arguments(device)
    plain = onelane_attention.sparse_mla_decode(**arguments)
    cache = arguments["window_cache"]
    pool = torch.full((len(cache), 3, cache.shape[1]), 255, dtype=torch.uint8, device=device)
    pool[:, 1] = cache
    arguments["window_cache"] = pool[:, 1].unflatten(1, (16, 1, 584))
    arguments["window_page_size"] = None
    arguments["extra_cache"] = arguments["extra_cache"].unflatten(1, (16, 584)).view(torch.float8_e4m3fn)
    for name in ("window_indices", "extra_indices"):
        wide = torch.nn.functional.pad(arguments[name], (0, 7), value=INT_MAX)
        arguments[name] = wide[:, None, :-7]
    same(onelane_attention.sparse_mla_decode(**arguments), plain)


@pytest.mark.parametrize("output", onelane_attention.OUTPUTS)
def test_out_form(device, output):
    case = Case(rows=6)
    arguments = case.arguments(device)
    expected = onelane_attention.sparse_mla_decode(**arguments, output=output)
    out, scales, lse = onelane_attention.empty_outputs(arguments["q"], output)
    for each in (out, scales, lse):
        if each is not None:
            each.view(torch.uint8).fill_(255)
    needed = onelane_attention.workspace_bytes(arguments["q"], 64, 96, output=output)
    workspace = torch.full((needed,), 255, dtype=torch.uint8, device=device)
    onelane_attention.sparse_mla_decode(
        **arguments, output=output, out=out, out_scales=scales, lse=lse, workspace=workspace
    )
    check(output, (out, scales, lse), case.reference())
    if output == "fp8_grouped":  # rows past the sixth are nobody's
        assert (scales[:, :, 6:] == -1).all()
        view = onelane_attention.grouped_scales(scales, 6)
        assert view.shape == (6, 2, 32) and view.stride() == (1, 32 * 8, 8)
        same([view], [onelane_attention.grouped_scales(expected[1], 6)])
    else:
        same((out, scales, lse), expected)
    onelane_attention.sparse_mla_decode(**arguments, output=output, out=out, out_scales=scales)  # no lse, own workspace


@pytest.mark.parametrize("output", ["bf16", "fp8"])
def test_splits_agree(device, output):
    arguments = Case(rows=6, heads=64, widths=(128, 512) if device == "cuda" else (32, 32)).arguments(device)
    whole = onelane_attention.sparse_mla_decode(**arguments, output=output, splits=1)
    for splits in (0, 2, 4, 8):
        out, _, lse = onelane_attention.sparse_mla_decode(**arguments, output=output, splits=splits)
        torch.testing.assert_close(lse, whole[2], atol=1e-5, rtol=0)
        if output == "fp8":
            assert (out.view(torch.uint8) == whole[0].view(torch.uint8)).double().mean() >= 0.999
        else:
            assert (out - whole[0]).double().norm() <= 3e-3 * whole[0].double().norm()


WRONG = [
    ({"q": lambda q: q.float()}, "q must be bfloat16, not float32"),
    ({"q": lambda q: q[..., :448]}, r"q must be \[rows, heads, 512\], not \[5, 16, 448\]"),
    ({"q": lambda q: q[:, :12].contiguous()}, "heads is 12; 8, 16, 32, 64 or 128"),
    ({"q": lambda q: q.transpose(0, 1).contiguous().transpose(0, 1)}, "q must be contiguous"),
    ({"window_indices": lambda i: i.long()}, "window_indices must be int32, not int64"),
    ({"window_indices": lambda i: i[:4]}, r"window_indices must be \[5, width\], not \[4, 64\]"),
    ({"extra_indices": lambda i: i[:1].expand(5, -1)}, "extra_indices has rows that overlap"),
    ({"extra_indices": lambda i: i.T.contiguous().T}, "extra_indices must be contiguous within a row"),
    ({"extra_lengths": lambda n: n[:4]}, r"extra_lengths must be \[5\], not \[4\]"),
    ({"window_cache": lambda c: c.int()}, "window_cache must be uint8 or float8_e4m3fn or bfloat16, not int32"),
    ({"window_cache": lambda c: c[:, ::2]}, "window_cache must be contiguous within a page"),
    ({"window_cache": lambda c: c[:, :-16]}, "window_cache has 9328 bytes a page; 16 records of v4 take 9344"),
    ({"window_cache": lambda c: torch.nn.functional.pad(c, (0, 8))}, "window_cache has pages 9352 bytes apart"),
    ({"window_cache": lambda c: None}, "window_indices without window_cache"),
    ({"window_page_size": lambda n: 0}, "window_page_size is 0; at least 1"),
    ({"sink": lambda s: s[:8]}, r"sink must be \[16\], not \[8\]"),
    ({"sink": lambda s: s.bfloat16()}, "sink must be float32, not bfloat16"),
    ({"positions": lambda p: p.long()}, "positions must be int32, not int64"),
    ({"positions": lambda p: None}, "cos_sin without positions"),
    ({"cos_sin": lambda a: a[:, :32]}, r"cos_sin must be \[positions, 64\], not \[40, 32\]"),
    ({"scale": lambda s: float("nan")}, "scale is nan"),
]


@pytest.mark.parametrize("change,sentence", WRONG, ids=[sentence for _, sentence in WRONG])
def test_errors_name_the_argument(device, change, sentence):
    arguments = Case().arguments(device)
    for name, how in change.items():
        arguments[name] = how(arguments[name])
    with pytest.raises(RuntimeError, match=sentence):
        onelane_attention.sparse_mla_decode(**arguments)


def test_errors_of_outputs(device):
    arguments = Case().arguments(device)
    out, scales, lse = onelane_attention.empty_outputs(arguments["q"], "fp8")
    decode = onelane_attention.sparse_mla_decode
    for named, sentence in [
        ({"out": out}, "out must be bfloat16, not float8_e4m3fn"),
        ({"out": out, "output": "fp8"}, "out_scales is needed for an fp8 output"),
        ({"out": out[:4], "out_scales": scales, "output": "fp8"}, r"out must be \[5, 16, 512\], not \[4, 16, 512\]"),
        ({"out": out, "out_scales": scales.int(), "output": "fp8"}, "out_scales must be uint8, not int32"),
        ({"out": out, "out_scales": scales, "lse": lse.T, "output": "fp8"}, r"lse must be \[5, 16\], not \[16, 5\]"),
        ({"out": out, "out_scales": scales, "splits": -1, "output": "fp8"}, "splits is -1"),
    ]:
        with pytest.raises(RuntimeError, match=sentence):
            decode(**arguments, **named)
    for named, sentence in [
        ({"output": "fp4"}, "output is 'fp4'; one of bf16, fp8, fp8_grouped"),
        ({"lse": lse}, "belong to a call with out"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            decode(**arguments, **named)
    with pytest.raises(ValueError, match="window_format is 'v5'"):
        decode(**(arguments | {"window_format": "v5"}))
    with pytest.raises(ValueError, match="window_page_size is needed"):
        decode(**(arguments | {"window_page_size": None}))
