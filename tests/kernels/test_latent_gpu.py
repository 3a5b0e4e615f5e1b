"""What only a GPU can show of the latent kernels: big shapes, memory taken, graphs, pools beyond 2^31 bytes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from kvplan_kernels.attention.latent import latent_decode, make_latent_workspace
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.latent import append_latent
from kvplan_kernels.store.latent_reference import read_latent_reference
from kvplan_kernels.testing import KERNEL, bytes_taken, relative_error

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind

pytestmark = pytest.mark.gpu
SM_SCALE = 192**-0.5
FORMATS = ["fp8_ds_mla", "bf16"]


def filled(spelling: str, batch: int, tokens: int, num_pages: int | None = None) -> Cache:
    layout = bind([Tensor("latent", parse_any(spelling), 576, 64)], 1, "bf16")
    cache = allocate(layout, num_sequences=batch, max_tokens=tokens, page_size=64, device="cuda", num_pages=num_pages)
    generator = torch.Generator("cuda").manual_seed(5)
    append_latent(cache, torch.randn(batch, tokens, 576, generator=generator, device="cuda").bfloat16())
    return cache


def query(cache: Cache, heads: int, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(6)
    return torch.randn(cache.num_sequences, rows, heads, 576, generator=generator, device="cuda").bfloat16()


def assert_right(q: torch.Tensor, cache: Cache, out: torch.Tensor | None = None) -> None:
    if out is None:
        out = torch.full((*q.shape[:-1], 512), float("nan"), device="cuda")
        latent_decode(q, cache, sm_scale=SM_SCALE, out=out)
    rows = [read_latent_reference(cache, b)[None] for b in range(cache.num_sequences)]
    want = attention_reference(q, rows.__getitem__, lambda b: rows[b][..., :512], cache.lengths, SM_SCALE)
    error = relative_error(out, want)
    assert KERNEL.accepts(error), error


@pytest.mark.parametrize(("heads", "rows"), [(16, 1), (7, 1), (128, 1), (20, 3), (128, 2)])
@pytest.mark.parametrize("spelling", FORMATS)
def test_long_ragged_requests(spelling: str, heads: int, rows: int) -> None:
    cache = filled(spelling, 7, 4096)
    cache.lengths.copy_(torch.tensor([4096, 1, 0, 63, 64, 65, 3001]))
    assert_right(query(cache, heads, rows), cache)


@pytest.mark.parametrize("spelling", FORMATS)
def test_fused_decode_takes_only_its_workspace(spelling: str) -> None:
    cache = filled(spelling, 4, 8192)
    q = query(cache, 128)
    out = torch.empty((*q.shape[:-1], 512), dtype=q.dtype, device="cuda")
    call = partial(latent_decode, q, cache, sm_scale=SM_SCALE, out=out)
    call()
    assert bytes_taken(call) <= make_latent_workspace(q, cache).nbytes


@pytest.mark.parametrize("spelling", FORMATS)
def test_a_graph_follows_the_lengths(spelling: str) -> None:
    """Captured once at full length, replayed after the lengths shrank: nothing of the old lengths may survive."""
    cache = filled(spelling, 5, 1000)
    q = query(cache, 64)
    out = torch.full((*q.shape[:-1], 512), float("nan"), device="cuda")
    space = make_latent_workspace(q, cache)
    latent_decode(q, cache, sm_scale=SM_SCALE, out=out, workspace=space)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        latent_decode(q, cache, sm_scale=SM_SCALE, out=out, workspace=space)
    for lengths in ([1000, 1, 128, 129, 0], [3, 1000, 0, 64, 500]):
        cache.lengths.copy_(torch.tensor(lengths))
        out.fill_(float("nan"))
        graph.replay()
        assert_right(q, cache, out)


@pytest.mark.parametrize("spelling", FORMATS)
def test_pools_beyond_2_31_words(spelling: str) -> None:
    """The pages of the only request lie at the end of a pool of more than 2^31 words of 16 bit."""
    layout = bind([Tensor("latent", parse_any(spelling), 576, 64)], 1, "bf16")
    pages = 2**32 // layout.page_bytes(64) + 64
    cache = allocate(layout, num_sequences=1, max_tokens=1024, page_size=64, device="cuda", num_pages=pages)
    cache.page_table.copy_(pages - 1 - cache.page_table.clone())
    generator = torch.Generator("cuda").manual_seed(5)
    append_latent(cache, torch.randn(1, 1024, 576, generator=generator, device="cuda").bfloat16())
    assert cache.nbytes > 2**32
    assert_right(query(cache, 16), cache)
