"""Prefill and prefix hits at sizes that the interpreter cannot reach: long prompts, a 32k prefix, graphs, memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from kvplan_kernels.attention.prefill import prefill, prefill_and_write
from kvplan_kernels.attention.prefix import make_scratch, prefix_attention
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import KERNEL, bytes_taken, relative_error
from torch import Tensor

from kvplan.formats.grammar import Pair, parse_kv
from kvplan.formats.grid import Tensor as Stored
from kvplan.formats.grid import bind

pytestmark = pytest.mark.gpu
NAN = float("nan")
HEADS = 4


def new_rows(
    batch: int, rows: int, group: int, dims: tuple[int, int], dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator("cuda").manual_seed(seed)
    shapes = ((HEADS * group, dims[0]), (HEADS, dims[0]), (HEADS, dims[1]))
    q, k, v = (torch.randn(batch, rows, *s, generator=draw, device="cuda").to(dtype) for s in shapes)
    return q, k, v


def filled(fmt: str, lengths: list[int], spare: int, dim: int = 128) -> Cache:
    pair = parse_kv(fmt)
    formats = (pair.k, pair.v) if isinstance(pair, Pair) else (pair, pair)
    layout = bind([Stored(role, f, dim) for role, f in zip("kv", formats, strict=True)], HEADS, "fp16")
    cache = allocate(
        layout, num_sequences=len(lengths), max_tokens=max(lengths) + spare, page_size=128, device="cuda"
    )  # fmt: skip
    _, k, v = new_rows(len(lengths), max(lengths), 1, (dim, dim), torch.float16, seed=1)
    calibrate_cache(cache, k, v)
    append(cache, k, v, counts=torch.tensor(lengths, dtype=torch.int32, device="cuda"))
    return cache


def assert_rows_right(
    out: Tensor, q: Tensor, own: list[Tensor], cache: Cache | None = None, variant: Variant = PLAIN
) -> None:
    """Some rows of every request against float64: ends, middle, and around a tile's end."""
    assert out.isfinite().all()
    rows = q.shape[1]
    for b in range(q.shape[0]):
        k, v = (x[b].transpose(0, 1).double() for x in own)
        if cache is not None:
            k, v = (torch.cat([read_reference(cache, r, b).double(), x], 1) for r, x in (("k", k), ("v", v)))
        for row in sorted({r for r in (0, 1, 63, 64, rows // 2, rows - 1) if r < rows}):
            length = torch.tensor([k.shape[1] - rows + row + 1])
            part = q[b : b + 1, row : row + 1]
            want = attention_reference(part, k[None], v[None], length, q.shape[3] ** -0.5, variant)
            error = relative_error(out[b : b + 1, row : row + 1], want)
            assert KERNEL.accepts(error), (b, row, error)


@pytest.mark.parametrize(
    ("dims", "group"),
    [((64, 64), 4), ((80, 80), 1), ((96, 96), 16), ((112, 112), 7), ((128, 128), 4), ((192, 128), 1), ((256, 256), 2)],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_prompts(dims: tuple[int, int], group: int, dtype: torch.dtype) -> None:
    q, k, v = new_rows(2, 4100, group, dims, dtype)
    out = torch.full((*q.shape[:3], dims[1]), NAN, device="cuda")
    assert_rows_right(prefill(q, k, v, out=out), q, [k, v])


def test_a_windowed_softcapped_prompt_with_sinks() -> None:
    q, k, v = new_rows(1, 8192, 4, (128, 128), torch.float16)
    variant = Variant(1000, 30.0, torch.randn(HEADS * 4, device="cuda"))
    out = torch.full(q.shape, NAN, device="cuda")
    assert_rows_right(prefill(q, k, v, variant=variant, out=out), q, [k, v], variant=variant)


@pytest.mark.parametrize("path", ["fused", "dequantise"])
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("fmt", ["fp16", "int8", "int4:group/32,asym", "kivi2", "nvfp4", "int4:token,asym,rot"])
def test_a_chunk_behind_32k_rows(fmt: str, rows: int, path: str) -> None:
    cache = filled(fmt, [32768, 129], 512)
    q, k, v = new_rows(2, rows, 4, (128, 128), torch.float16)
    out = torch.full(q.shape, NAN, device="cuda")
    prefix_attention(q, k, v, cache, path=path, out=out)
    assert_rows_right(out, q, [k, v], cache)


@pytest.mark.parametrize("path", ["fused", "dequantise"])
def test_a_graph_follows_lengths_and_counts(path: str) -> None:
    """Captured once, replayed with other prefix lengths and real rows."""
    cache = filled("int8", [900, 900, 900], 64)
    q, k, v = new_rows(3, 40, 4, (128, 128), torch.float16)
    counts = torch.tensor([40, 40, 40], dtype=torch.int32, device="cuda")
    out, scratch = torch.full(q.shape, NAN, device="cuda"), make_scratch(q, cache)

    def call() -> None:
        prefix_attention(q, k, v, cache, counts=counts, path=path, out=out, scratch=scratch)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for lengths, real in (([900, 1, 129], [40, 1, 0]), ([0, 128, 500], [3, 40, 17])):
        cache.lengths.copy_(torch.tensor(lengths))
        counts.copy_(torch.tensor(real))
        out.fill_(NAN)
        graph.replay()
        for b, count in enumerate(real):
            assert (out[b, count:] == 0).all()
            if not count:
                continue
            want = prefix_attention(q[:, :count].contiguous(), k[:, :count], v[:, :count], cache, path="dequantise")
            error = relative_error(out[b, :count], want[b, :count])
            assert KERNEL.accepts(error), error


def test_the_dequantise_path_takes_its_scratch_and_no_more() -> None:
    cache = filled("int8", [32768], 256)
    q, k, v = new_rows(1, 256, 4, (128, 128), torch.float16)
    out = torch.empty_like(q)

    def taken(**more: object) -> int:
        return bytes_taken(partial(prefix_attention, q, k, v, cache, path="dequantise", out=out, **more))

    taken()
    assert taken() == cache.layout.dense_bytes(1, cache.max_tokens)
    assert taken(scratch=make_scratch(q, cache)) == 0


def test_prefill_and_write_of_a_long_prompt() -> None:
    q, k, v = new_rows(2, 4096, 4, (128, 128), torch.float16)
    caches = [filled("int4:token,asym", [1, 1], 4096) for _ in range(2)]
    for cache in caches:
        cache.lengths.zero_()
        for plane in cache.planes.values():
            plane.zero_()
    append(caches[0], k, v)
    out = torch.full(q.shape, NAN, device="cuda")
    prefill_and_write(q, k, v, caches[1], out=out)
    assert_rows_right(out, q, [k, v])
    assert caches[1].lengths.tolist() == [4096, 4096]
    for name, plane in caches[0].planes.items():
        assert torch.equal(plane.view(torch.uint8), caches[1].planes[name].view(torch.uint8))
