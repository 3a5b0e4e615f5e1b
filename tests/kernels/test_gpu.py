"""What only a GPU can show: memory taken, graphs that follow lengths, pools beyond 2^31 elements, timing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from kvplan_kernels.attention.decode import decode, make_workspace
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import KERNEL, bytes_taken, relative_error
from kvplan_kernels.tuning import launch

from kvplan.formats.grammar import Pair, parse_kv
from kvplan.formats.grid import Tensor, bind

pytestmark = pytest.mark.gpu
FORMATS = [
    "bf16", "int8", "int8:head", "fp8_e4m3", "fp8_e4m3:head", "int4", "int4:token,asym", "int2:token,asym",
    "int8:group/32,asym", "int4:group/32,asym", "int2:group/32,asym", "kivi2", "kivi4", "int8:channel/32",
    "int4:channel/32,asym", "int8,recent=128",
    "nvfp4", "mxfp4", "mxfp8", "int3,rot", "int4:token,asym,rot",
]  # fmt: skip


def filled(fmt: str, batch: int, tokens: int, num_pages: int | None = None) -> tuple[Cache, torch.Tensor]:
    pair = parse_kv(fmt)
    formats = (pair.k, pair.v) if isinstance(pair, Pair) else (pair, pair)
    layout = bind([Tensor(role, f, 128) for role, f in zip("kv", formats, strict=True)], 8, "bf16")
    cache = allocate(layout, num_sequences=batch, max_tokens=tokens, page_size=128, device="cuda", num_pages=num_pages)
    generator = torch.Generator("cuda").manual_seed(5)
    k, v = (torch.randn(batch, tokens, 8, 128, generator=generator, device="cuda").bfloat16() for _ in range(2))
    calibrate_cache(cache, k, v)
    append(cache, k, v)
    return cache, torch.randn(batch, 32, 128, generator=generator, device="cuda").bfloat16()


def assert_right(out: torch.Tensor, q: torch.Tensor, cache: Cache) -> None:
    rows = [lambda b, role=role: read_reference(cache, role, b) for role in ("k", "v")]
    error = relative_error(out, attention_reference(q, rows[0], rows[1], cache.lengths, 128**-0.5))
    assert KERNEL.accepts(error), error


@pytest.mark.parametrize("fmt", FORMATS)
def test_fused_decode_takes_only_its_workspace(fmt: str) -> None:
    cache, q = filled(fmt, 4, 8192)
    out = torch.empty_like(q)
    declared = make_workspace(q, cache).nbytes
    decode(q, cache, out=out)
    assert bytes_taken(partial(decode, q, cache, out=out)) <= declared
    assert declared < 0.05 * 4 * 8192 * 8 * 256 * 2


@pytest.mark.parametrize(
    "fmt", ["int8", "fp8_e4m3", "int4:group/32,asym", "nvfp4", "int3,rot", "kivi2", "int8:channel/32"]
)
def test_a_graph_follows_the_lengths(fmt: str) -> None:
    """Captured once at full length, replayed after the lengths shrank: nothing of the old lengths may survive."""
    cache, q = filled(fmt, 5, 1000)
    out = torch.full(q.shape, float("nan"), device="cuda")
    space = make_workspace(q, cache)
    decode(q, cache, out=out, workspace=space)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode(q, cache, out=out, workspace=space)
    for lengths in ([1000, 1, 128, 129, 0], [3, 1000, 0, 64, 500]):
        cache.lengths.copy_(torch.tensor(lengths))
        out.fill_(float("nan"))
        graph.replay()
        assert_right(out, q, cache)


def test_a_search_on_a_gpu_that_the_table_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real compiles, checks and times; what is found is right, at least as fast as the table's, and kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "is_measured", lambda _device: False)
    cache, q = filled("int4:token,asym", 4, 4096)
    found = launch.tuned_config(q, cache)
    assert found.source == "searched"
    assert_right(decode(q, cache, config=found.config, out=torch.full(q.shape, float("nan"), device="cuda")), q, cache)
    (file,) = (tmp_path / "kvplan" / "launches").iterdir()
    kept = json.loads(file.read_text())
    assert kept["key"]["gpu"] == torch.cuda.get_device_name() and 0 < kept["seconds"] <= kept["table_seconds"]
    assert launch.tuned_config(q, cache) == launch.Launch(found.config, "kept")


@pytest.mark.parametrize("fmt", ["bf16", "int8", "int8:channel/32"])
def test_pools_beyond_2_31_elements(fmt: str) -> None:
    """The pages of the only request lie at the end of a pool of more than 2^31 elements per plane."""
    pages = 2**31 // (8 * 128 * 128) + 64
    cache, q = filled(fmt, 1, 1024, num_pages=pages)
    near = cache.page_table.clone()
    far = (pages - 1 - near).contiguous()
    for plane in cache.planes.values():
        if plane.shape[0] == pages:
            plane.view(torch.uint8)[far[0].long()] = plane.view(torch.uint8)[near[0].long()]
            plane.view(torch.uint8)[near[0].long()] = 0x55
    cache.page_table.copy_(far)
    assert cache.codes("k").numel() > 2**31
    assert_right(decode(q, cache, out=torch.full(q.shape, float("nan"), device="cuda")), q, cache)
