"""Sparse-MLA decode attention of DeepSeek V4 and V4.1 as PyTorch operators, split over the entries of a row.

    out[r, h] = sum_t softmax(scale * q[r, h] . kv[t])[t] * kv[t]      t: the records that row r's two index lists name

with an attention sink in the denominator, optional inverse RoPE of the last 64 dims, and a bf16 or FP8 output. CUDA
tensors run on the current stream, CPU tensors on the CPU. Importing this module loads the operators
``torch.ops.onelane.sparse_mla_decode``, ``..._out`` and ``..._workspace`` and registers what torch.compile needs; the
functions below are thin: they turn names into the operators' integers. There is no backward.

`sparse_mla_decode` explains all arguments.
"""

import os
import pathlib

import torch

__all__ = [
    "KV_FORMATS",
    "OUTPUTS",
    "RECORD_BYTES",
    "empty_outputs",
    "grouped_scales",
    "library_path",
    "sparse_mla_decode",
    "workspace_bytes",
]

# How a record of 512 values is stored. A page holds the data of all its records, then the scales of all its records.
KV_FORMATS = {
    "bf16": 0,  # 1024 B: 512 bf16
    "v4": 1,  # 576 B: 448 e4m3, 64 bf16; 8 B: 7 e8m0 scales (one per 64), 1 unused
    "v41_fp8": 2,  # 512 B: 512 e4m3; 16 B: e8m0 scales (one per 32)
    "v41_fp4": 3,  # 256 B: 512 e2m1, the even dim in the low nibble; 32 B: e4m3 scales (one per 16)
}
RECORD_BYTES = {"bf16": 1024, "v4": 584, "v41_fp8": 528, "v41_fp4": 288}
OUTPUTS = {"bf16": 0, "fp8": 1, "fp8_grouped": 2}

_LIBRARY = "onelane_attention_torch.so"


def library_path():
    """The operators' library: $ONELANE_ATTENTION_TORCH, or beside this file, or in build/torch of the checkout."""
    named = os.environ.get("ONELANE_ATTENTION_TORCH")
    here = pathlib.Path(__file__).resolve().parent
    places = [pathlib.Path(named)] if named else [here / _LIBRARY, here.parents[1] / "build" / "torch" / _LIBRARY]
    for place in places:
        if place.is_file():
            return place
    raise ImportError(f"{_LIBRARY} is in none of {', '.join(map(str, places))}: build it with torch/build.sh")


torch.ops.load_library(str(library_path()))


def _code(table, name, argument):
    if name not in table:
        raise ValueError(f"{argument} is {name!r}; one of {', '.join(table)}")
    return table[name]


def _page_size(cache, page_size, argument):
    if page_size is not None:
        return page_size
    if cache is None:
        return 0
    if cache.dim() < 3:
        raise ValueError(f"{argument} is needed: a cache of two dims, [pages, page_bytes], does not tell it")
    return cache.size(1)


def _output_shapes(q, output):
    """(shape, dtype) of out and of out_scales; q [rows, heads, 512], rows may be symbolic."""
    rows, heads, dim = q.shape
    groups = heads // 8
    if output == OUTPUTS["bf16"]:
        return ((rows, heads, dim), torch.bfloat16), ((0,), torch.uint8)
    if output == OUTPUTS["fp8"]:
        return ((rows, heads, dim), torch.float8_e4m3fn), ((rows, heads, dim // 32), torch.uint8)
    return ((rows, groups, 8 * dim), torch.float8_e4m3fn), ((groups, 8 * dim // 128, (rows + 3) // 4 * 4), torch.int32)


@torch.library.register_fake("onelane::sparse_mla_decode")
def _fake_decode(
    q,
    window_cache,
    window_indices,
    window_lengths=None,
    extra_cache=None,
    extra_indices=None,
    extra_lengths=None,
    *,
    scale,
    window_format,
    window_page_size,
    extra_format=0,
    extra_page_size=0,
    sink=None,
    positions=None,
    cos_sin=None,
    output=0,
    splits=0,
):
    torch._check(q.dim() == 3, lambda: f"onelane: q must be [rows, heads, 512], not {list(q.shape)}")
    (out, dtype), (scales, scales_dtype) = _output_shapes(q, output)
    return (
        q.new_empty(out, dtype=dtype),
        q.new_empty(scales, dtype=scales_dtype),
        q.new_empty(q.shape[:2], dtype=torch.float32),
    )


@torch.library.register_fake("onelane::sparse_mla_decode_out")
def _fake_decode_out(*arguments, **named):
    return None


def sparse_mla_decode(
    q,
    window_cache,
    window_indices,
    window_lengths=None,
    extra_cache=None,
    extra_indices=None,
    extra_lengths=None,
    *,
    scale,
    window_format="v4",
    window_page_size=None,
    extra_format=None,
    extra_page_size=None,
    sink=None,
    positions=None,
    cos_sin=None,
    output="bf16",
    splits=0,
    out=None,
    out_scales=None,
    lse=None,
    workspace=None,
):
    """Attention of each query row over the records that its index lists name. Returns (out, out_scales, lse).

    q               bf16 [rows, heads, 512], contiguous; heads 8, 16, 32, 64 or 128. A row is one query at one position:
                    a request that verifies k draft tokens has k + 1 rows.
    window_cache    uint8 [pages, page_bytes], or a view with more dims, such as [pages, page_size, 584]. Dim 0 may
                    be strided (a multiple of 16 bytes); a page is dense. float8_e4m3fn and bfloat16 are taken for their
                    bytes. None without window_indices.
    window_indices  int32 [rows, width] or [rows, 1, width]: page * page_size + place; dim 0 may be strided. What is
                    negative or names no record of the cache counts as no entry, at any place. None: no window list.
    window_lengths  int32 [rows], clamped to [0, width]: entries from there on are never looked at. None: the width.
    extra_...       the same of the second list, the compressed cache. An entry of both lists counts twice.
    scale           of the scores, for instance 512 ** -0.5.
    ..._format      "bf16" (1024 B a record), "v4" (584), "v41_fp8" (528), "v41_fp4" (288). extra_format None: the same.
    ..._page_size   records in a page; None: size(1) of a cache with three dims or more.
    sink            f32 [heads], natural log, joins the denominator: -inf none, +inf makes the output 0. None: no sink.
    positions       int32 [rows], with cos_sin: out[..., 448:], pairs (2i, 2i + 1), is rotated back by the angles of the
                    row's position, clamped to the table. None: not rotated.
    cos_sin         f32 [positions, 64]: 32 cosines, then 32 sines.
    output          "bf16", "fp8" or "fp8_grouped" (below).
    splits          most parts a row is cut into; 0: chosen from shapes and device, never from lengths. 1: unsplit.

    out             "bf16": bf16 [rows, heads, 512].
                    "fp8": float8_e4m3fn [rows, heads, 512].
                    "fp8_grouped": float8_e4m3fn [rows, heads / 8, 4096], element (h, d) of a group of 8 heads at
                    (d // 32) * 256 + h * 32 + d % 32.
    out_scales      "bf16": None. e8m0, 2^(byte - 127), one per 32 values:
                    "fp8": uint8 [rows, heads, 16].
                    "fp8_grouped": int32 [heads / 8, 32, padded rows]: rows padded to a multiple of 4, nothing written
                    there; byte c * 8 + h of 128, four to a word, is chunk c of head h. `grouped_scales` turns it.
    lse             f32 [rows, heads], natural log of the sum without the sink; +inf for a row without entries, whose
                    output is 0.
    workspace       uint8, at least `workspace_bytes`, one per call in flight; None: allocated for the call.

    Without `out` the three outputs are allocated; with it the call writes out, out_scales and lse (None: not wanted),
    and allocates nothing if workspace is given. Both forms may be captured in a CUDA graph, and are replayed with other
    lengths, indices and values in the same tensors.
    """
    extra_format = window_format if extra_format is None else extra_format
    inputs = (q, window_cache, window_indices, window_lengths, extra_cache, extra_indices, extra_lengths)
    named = {
        "scale": scale,
        "window_format": _code(KV_FORMATS, window_format, "window_format"),
        "window_page_size": _page_size(window_cache, window_page_size, "window_page_size"),
        "extra_format": _code(KV_FORMATS, extra_format, "extra_format"),
        "extra_page_size": _page_size(extra_cache, extra_page_size, "extra_page_size"),
        "sink": sink,
        "positions": positions,
        "cos_sin": cos_sin,
        "output": _code(OUTPUTS, output, "output"),
        "splits": splits,
    }
    if out is not None:
        torch.ops.onelane.sparse_mla_decode_out(
            *inputs, **named, out=out, out_scales=out_scales, lse=lse, workspace=workspace
        )
        return out, out_scales, lse
    if out_scales is not None or lse is not None or workspace is not None:
        raise ValueError("out_scales, lse and workspace belong to a call with out")
    out, out_scales, lse = torch.ops.onelane.sparse_mla_decode(*inputs, **named)
    return out, (None if output == "bf16" else out_scales), lse


def workspace_bytes(
    q, window_width, extra_width=0, *, window_format="v4", extra_format=None, output="bf16", splits=0
):
    """Bytes that `workspace` needs for calls of q's shape and device and lists of these widths. 0 is possible.

    Not monotonic in rows: fewer rows are cut into more parts. For one workspace over several captured shapes take the
    largest. Ask outside of torch.compile.
    """
    extra_format = window_format if extra_format is None else extra_format
    return torch.ops.onelane.sparse_mla_decode_workspace(
        q,
        window_width,
        extra_width,
        window_format=_code(KV_FORMATS, window_format, "window_format"),
        extra_format=_code(KV_FORMATS, extra_format, "extra_format"),
        output=_code(OUTPUTS, output, "output"),
        splits=splits,
    )


def empty_outputs(q, output="bf16"):
    """Uninitialised out, out_scales (None for bf16) and lse for q [rows, heads, 512]: see `sparse_mla_decode`."""
    (out, dtype), (scales, scales_dtype) = _output_shapes(q, _code(OUTPUTS, output, "output"))
    return (
        q.new_empty(out, dtype=dtype),
        None if output == "bf16" else q.new_empty(scales, dtype=scales_dtype),
        q.new_empty(q.shape[:2], dtype=torch.float32),
    )


def grouped_scales(out_scales, rows):
    """The scales of "fp8_grouped" as DeepGEMM's grouped einsum (recipe 1, 1, 32) reads them: an int32 view
    [rows, heads / 8, 32] whose rows are innermost in memory and whose columns are padded to a multiple of 4 rows."""
    return out_scales.permute(2, 0, 1)[:rows]
