"""Tests of the PyTorch operators inside torch.compile, CUDA graphs, streams and several devices."""

import pytest
import torch
from test_onelane_attention import Case, check, device, same  # noqa: F401 (device: a fixture)

import onelane_attention

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def operator_call(arguments, output):
    """Positional and keyword arguments of torch.ops.onelane.sparse_mla_decode."""
    tensors = [arguments[name] for name in ("q", "window_cache", "window_indices", "window_lengths")]
    tensors += [arguments[name] for name in ("extra_cache", "extra_indices", "extra_lengths")]
    named = {name: arguments[name] for name in ("scale", "sink", "positions", "cos_sin")}
    for name in ("window", "extra"):
        named[f"{name}_format"] = onelane_attention.KV_FORMATS[arguments[f"{name}_format"]]
        named[f"{name}_page_size"] = arguments[f"{name}_page_size"]
    return tensors, named | {"output": onelane_attention.OUTPUTS[output]}


@pytest.mark.parametrize("output", onelane_attention.OUTPUTS)
def test_opcheck(device, output):  # noqa: F811
    # 4 rows: no padding in the grouped scales, which is never written.
    arguments = Case("v41_fp8", "v41_fp4", rows=4, heads=8).arguments(device)
    tensors, named = operator_call(arguments, output)
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if output == "bf16":
        checks.append("test_schema")  # PyTorch 2.11's own does arithmetic on the outputs, which float8 has none of
    torch.library.opcheck(torch.ops.onelane.sparse_mla_decode, tensors, named, test_utils=checks)
    out, scales, lse = onelane_attention.empty_outputs(arguments["q"], output)
    if output != "bf16":
        out = out.view(torch.uint8)
    for each in (out, scales, lse):
        if each is not None:
            each.fill_(0)
    named |= {"out": out, "out_scales": scales, "lse": lse}
    torch.library.opcheck(torch.ops.onelane.sparse_mla_decode_out, tensors, named)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(device, backend):  # noqa: F811
    """One graph, for every number of rows; both forms."""

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def functional(arguments):
        out, scales, lse = onelane_attention.sparse_mla_decode(**arguments, output="fp8_grouped")
        return out, onelane_attention.grouped_scales(scales, out.shape[0]), lse

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def in_place(arguments, out, lse):
        onelane_attention.sparse_mla_decode(**arguments, out=out, lse=lse)
        return lse.view(-1)

    for rows in (5, 7):
        arguments = Case("v41_fp8", "v41_fp4", rows=rows, heads=8).arguments(device)
        out, scales, lse = onelane_attention.sparse_mla_decode(**arguments, output="fp8_grouped")
        same(functional(arguments), (out, onelane_attention.grouped_scales(scales, rows), lse))
        out, _, lse = onelane_attention.empty_outputs(arguments["q"])
        flat = in_place(arguments, out, lse)
        same((out, None, lse), onelane_attention.sparse_mla_decode(**arguments))
        same([flat], [lse.view(-1)])


STEPS = [Case("v41_fp8", "v41_fp4", rows=6, heads=64, widths=(128, 512), seed=seed) for seed in (1, 2, 3)]


def load(static, case):
    for name, value in case.arguments("cuda").items():
        if isinstance(value, torch.Tensor):
            static[name].copy_(value)


@needs_gpu
@pytest.mark.parametrize("output", onelane_attention.OUTPUTS)
def test_graph_of_the_out_form(output):
    """Captured once, replayed with other queries, indices, lengths and caches; scratch and outputs poisoned before."""
    static = STEPS[0].arguments("cuda")
    out, scales, lse = onelane_attention.empty_outputs(static["q"], output)
    needed = onelane_attention.workspace_bytes(
        static["q"], 128, 512, window_format="v41_fp8", extra_format="v41_fp4", output=output
    )
    workspace = torch.empty(needed, dtype=torch.uint8, device="cuda")
    static |= {"output": output, "out": out, "out_scales": scales, "lse": lse, "workspace": workspace}
    # A process's first capture makes the state of PyTorch's random numbers: not what is counted here.
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        out.zero_()
    graph = torch.cuda.CUDAGraph()
    onelane_attention.sparse_mla_decode(**static)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.cuda.graph(graph):
        onelane_attention.sparse_mla_decode(**static)
    assert torch.cuda.memory_allocated() == before
    for case in [*STEPS[1:], STEPS[0]]:
        load(static, case)
        for each in (out, scales, lse, workspace):
            if each is not None:
                each.view(torch.uint8).fill_(255)
        graph.replay()
        check(output, (out, scales, lse), case.reference())
        if output == "fp8_grouped":
            assert (scales[:, :, 6:] == -1).all()
        else:
            same((out, scales, lse), onelane_attention.sparse_mla_decode(**case.arguments("cuda"), output=output))


@needs_gpu
def test_graph_of_the_functional_form():
    static = STEPS[0].arguments("cuda")
    onelane_attention.sparse_mla_decode(**static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = onelane_attention.sparse_mla_decode(**static)
    for case in STEPS[1:]:
        load(static, case)
        graph.replay()
        check("bf16", result, case.reference())


@needs_gpu
def test_current_stream():
    """Inputs that a side stream is still making are waited for there, and nowhere else."""
    case = STEPS[0]
    arguments = case.arguments("cuda")
    q = arguments["q"]
    arguments["q"] = torch.zeros_like(q)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        arguments["q"].copy_(q)
        result = onelane_attention.sparse_mla_decode(**arguments)
    side.synchronize()
    check("bf16", result, case.reference())


@needs_gpu
def test_tensors_of_another_device():
    case = Case()
    arguments = case.arguments("cuda")
    arguments["window_indices"] = arguments["window_indices"].cpu()
    with pytest.raises(RuntimeError, match="window_indices must be on the device of q"):
        onelane_attention.sparse_mla_decode(**arguments)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_second_device():
    assert torch.cuda.current_device() == 0
    case = Case()
    result = onelane_attention.sparse_mla_decode(**case.arguments("cuda:1"))
    check("bf16", result, case.reference())
    assert result[0].device.index == 1 and torch.cuda.current_device() == 0
