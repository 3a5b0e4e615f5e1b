"""The second read of a case: what must not change the result, what must change it as the reference says, and other ways
to read the same cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvplan_kernels.attention.config import default_config
from kvplan_kernels.attention.prefix import Path, make_scratch, prefix_attention
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.cache import Cache
from kvplan_kernels.matrix.data import make_chunk
from kvplan_kernels.matrix.memory import make_cache
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import double_scales
from kvplan_kernels.testing import FP8_DOMAIN, as_bytes

if TYPE_CHECKING:
    from kvplan_kernels.matrix.run import Run


def decode_again(run: Run, out: Tensor) -> None:
    AGAIN[run.case.again](run, out)


def _programs(run: Run, out: Tensor) -> None:
    config = run.case.config
    more = replace(config, ctas_per_sm=2 * config.ctas_per_sm + 1)
    run.check("decode with other splits", run.decode(run.cache, config=more), out.double())


def _page_size(run: Run, out: Tensor) -> None:
    page = run.case.other_page
    cache = make_cache(run.case, page, str(run.q.device))
    run.writer(write_reference)(cache)
    config = default_config(cache.layout, page, run.case.columns)
    run.check(f"decode with pages of {page}", run.decode(cache, config=config), out.double())


def _order(run: Run, out: Tensor) -> None:
    cache = run.cache.clone()
    planes = {p.name: cache.planes[p.name] for p in cache.layout.planes}
    for plane in cache.layout.scoped("residual"):
        planes[plane.name] = planes[plane.name].flip(0).contiguous()
    turned = Cache(cache.layout, cache.page_size, planes, cache.page_table.flip(0).contiguous(), cache.lengths.flip(0))
    got = run.decode(turned, q=run.q.flip(0).contiguous(), config=run.case.config)
    run.check("decode of the batch in reverse", got.flip(0), out.double())


def _scales(run: Run, out: Tensor) -> None:
    changed = run.cache.clone()
    double_scales(changed, "k")
    run.check("decode with doubled K scales", run.decode(changed, config=run.case.config), run.expected(changed))


def _code(run: Run, out: Tensor) -> None:
    changed = run.cache.clone()
    codes = as_bytes(changed.codes("v"))
    for b, count in enumerate(run.case.counts):
        packed = changed.layout.tensor("v").split(count)[0]
        if packed:
            page, slot = changed.page_table[b, (packed - 1) // changed.page_size], (packed - 1) % changed.page_size
            codes[int(page), run.case.heads - 1, slot, 0] ^= 0x20
    run.check("decode with one flipped V code", run.decode(changed, config=run.case.config), run.expected(changed))


def _fp8_domain(run: Run, out: Tensor) -> None:
    got = run.decode(run.cache, config=run.case.config, fp8_domain=True)
    run.check("decode in the FP8 domain", got, run.expected(run.cache, fp8_domain=True), FP8_DOMAIN)
    run.require(not torch.equal(got, out) or not out.any(), "decode in the FP8 domain rounds nothing")


def _prefix(run: Run, path: Path) -> None:
    """The queries as a chunk behind all stored rows, with 16-bit rows of its own that are not in the cache."""
    case, cache = run.case, run.cache
    q = run.q.view(len(case.counts), case.rows, -1, case.dims[0])
    chunk = make_chunk(case, str(q.device), run.seed)
    scratch = make_scratch(q, cache)
    for rows in scratch:
        rows.fill_(torch.nan)
    out = torch.full((*q.shape[:3], case.dims[1]), torch.nan, device=q.device)
    prefix_attention(
        q, *chunk, cache, sm_scale=run.sm_scale, variant=run.variant, path=path, scratch=scratch, out=out
    )  # fmt: skip

    def behind(role: str, own: Tensor, b: int) -> Tensor:
        stored = read_reference(cache, role, b)
        # The scratch is in the queries' dtype.
        stored = stored.to(q.dtype) if path == "dequantise" else stored
        return torch.cat([stored.double(), own[b].transpose(0, 1).double()], 1)

    rows = [lambda b, role=role, own=own: behind(role, own, b) for role, own in zip("kv", chunk, strict=True)]
    want = attention_reference(q, *rows, cache.lengths + case.rows, run.sm_scale, run.variant)
    run.check(f"prefix hit, {path}", out, want, empty=False)


AGAIN: dict[str, Callable[[Run, Tensor], None]] = {
    "programs": _programs,
    "page size": _page_size,
    "order": _order,
    "scales": _scales,
    "code": _code,
    "fp8 domain": _fp8_domain,
    "prefix fused": lambda run, out: _prefix(run, "fused"),
    "prefix dense": lambda run, out: _prefix(run, "dequantise"),
}
