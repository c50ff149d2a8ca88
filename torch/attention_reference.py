"""Sparse-MLA decode attention in plain PyTorch and float64, and random caches for it: the oracle of the tests.

Written from the record layouts and formulas alone (README.md), with nothing of the library in it.
"""

import dataclasses

import torch

DIM = 512
ROPE = 64
RECORD = {"bf16": (1024, 0), "v4": (576, 8), "v41_fp8": (512, 16), "v41_fp4": (256, 32)}  # data, scale bytes
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def e4m3(codes):
    """float64 of uint8 codes."""
    return codes.contiguous().view(torch.float8_e4m3fn).to(torch.float64)


def e8m0(codes):
    """2^(code - 127) of uint8 codes; 255 is NaN."""
    values = torch.exp2(codes.to(torch.float64) - 127)
    return torch.where(codes == 255, torch.nan, values)


def decode(format, data, scales):
    """Records as float64 [n, 512] from their data bytes [n, ...] and scale bytes [n, ...]."""
    if format == "bf16":
        return data.contiguous().view(torch.bfloat16).to(torch.float64)
    if format == "v4":
        nope = e4m3(data[:, :448]).view(-1, 7, 64) * e8m0(scales[:, :7])[:, :, None]
        rope = data[:, 448:].contiguous().view(torch.bfloat16).to(torch.float64)
        return torch.cat([nope.reshape(-1, 448), rope], 1)
    if format == "v41_fp8":
        return (e4m3(data).view(-1, 16, 32) * e8m0(scales)[:, :, None]).reshape(-1, DIM)
    pairs = torch.stack([data & 15, data >> 4], 2).reshape(-1, DIM)
    return (E2M1[pairs.long()].view(-1, 32, 16) * e4m3(scales)[:, :, None]).reshape(-1, DIM)


def random_records(format, count, generator):
    """Data and scale bytes of records with values of about 0.2."""

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

    def fp8(*shape):
        return (normal(*shape) * 60).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)

    if format == "bf16":
        return (normal(count, DIM) * 0.2).bfloat16().view(torch.uint8), torch.empty(count, 0, dtype=torch.uint8)
    if format == "v4":
        rope = (normal(count, ROPE) * 0.2).bfloat16().view(torch.uint8)
        unused = torch.full((count, 1), 255, dtype=torch.uint8)
        return torch.cat([fp8(count, 448), rope], 1), torch.cat([integers(117, 121, count, 7), unused], 1)
    if format == "v41_fp8":
        return fp8(count, DIM), integers(117, 121, count, 16)
    scales = (torch.rand(count, 32, generator=generator) * 0.1 + 0.02).to(torch.float8_e4m3fn)
    return integers(0, 256, count, 256), scales.view(torch.uint8)


class Cache:
    """A pool of random records: `bytes` uint8 [pages, page_bytes], with `gap` bytes after the records of a page."""

    def __init__(self, format, pages, page_size, generator, gap=0):
        self.format, self.pages, self.page_size = format, pages, page_size
        data, scales = RECORD[format]
        held = page_size * (data + scales)
        stride = (held + 15) // 16 * 16 + gap
        self.bytes = torch.full((pages, stride), 255, dtype=torch.uint8)  # 255: NaN in all formats
        # Views of [pages, page_size, bytes of a record].
        self.data = self.bytes[:, : page_size * data].unflatten(1, (page_size, data))
        self.scales = self.bytes[:, page_size * data : held].unflatten(1, (page_size, scales))
        some_data, some_scales = random_records(format, pages * page_size, generator)
        self.data.copy_(some_data.view(pages, page_size, data))
        self.scales.copy_(some_scales.view(pages, page_size, scales))

    @property
    def records(self):
        return self.pages * self.page_size

    def poison(self, used):
        """NaN into every record that `used`, a list of indices, does not name."""
        spare = torch.ones(self.records, dtype=torch.bool)
        spare[used] = False
        spare = spare.view(self.pages, self.page_size)
        self.data[spare] = 255
        self.scales[spare] = 255

    def values(self):
        """float64 [records, 512]"""
        return decode(self.format, self.data.reshape(self.records, -1), self.scales.reshape(self.records, -1))


@dataclasses.dataclass
class EntryList:
    """A cache with the indices [rows, width] and lengths [rows] or None of a call; all on the CPU."""

    cache: Cache
    indices: torch.Tensor
    lengths: torch.Tensor | None

    def entries(self, row):
        """Indices of the row's entries."""
        width = self.indices.shape[1]
        length = width if self.lengths is None else int(self.lengths[row].clamp(0, width))
        named = self.indices[row, :length]
        return named[(named >= 0) & (named < self.cache.records)].long()


def attention(q, lists, scale, sink=None, positions=None, cos_sin=None):
    """out float64 [rows, heads, 512] and lse float64 [rows, heads]; q bf16 [rows, heads, 512], `lists` of EntryList."""
    rows, heads, _ = q.shape
    out = torch.zeros(rows, heads, DIM, dtype=torch.float64)
    lse = torch.full((rows, heads), torch.inf, dtype=torch.float64)
    values = [each.cache.values() for each in lists]
    for row in range(rows):
        kv = torch.cat([value[each.entries(row)] for value, each in zip(values, lists)])
        if len(kv) == 0:
            continue
        scores = q[row].double() @ kv.T * scale
        lse[row] = scores.logsumexp(1)
        out[row] = scores.softmax(1) @ kv
        if sink is not None:
            out[row] *= torch.sigmoid(lse[row] - sink.double())[:, None]
        if positions is not None:
            angles = cos_sin[int(positions[row].clamp(0, len(cos_sin) - 1))].double()
            cos, sin = angles[: ROPE // 2], angles[ROPE // 2 :]
            x, y = out[row, :, -ROPE::2].clone(), out[row, :, -ROPE + 1 :: 2].clone()
            out[row, :, -ROPE::2] = x * cos + y * sin
            out[row, :, -ROPE + 1 :: 2] = y * cos - x * sin
    return out, lse


def fp8_scale_codes(out):
    """e8m0 code of each block of 32: 2^ceil(log2(max(amax, 1e-4) / 448)); [rows, heads, 16]."""
    amax = out.unflatten(-1, (16, 32)).abs().amax(-1).clamp(min=1e-4)
    return torch.ceil(torch.log2(amax / 448)).long() + 127


def plain_fp8(output, out, scales):
    """Codes uint8 [rows, heads, 512] and scale codes uint8 [rows, heads, 16] of an "fp8" or "fp8_grouped" output."""
    codes = out.view(torch.uint8)
    if output == "fp8":
        return codes, scales
    rows, groups, _ = codes.shape
    codes = codes.view(rows, groups, 16, 8, 32).permute(0, 1, 3, 2, 4).reshape(rows, groups * 8, DIM)
    words = scales.contiguous().view(torch.uint8).view(groups, 32, -1, 4)  # [groups, word, row, byte of the word]
    scales = words.permute(2, 0, 1, 3)[:rows].reshape(rows, groups, 16, 8)
    return codes, scales.permute(0, 1, 3, 2).reshape(rows, groups * 8, 16)
