"""FlashInfer's paged decode timed like the kernels here, where it can be imported; each failure is named.

FA2 in 16 bit and fp8 (which computes in 16 bit), XQA in fp8 (which also multiplies in 8 bit). Page sizes as each likes
them best. A peer whose output is wrong has no speed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from kvplan_kernels.attention.reference import softmax_logits
from kvplan_kernels.bench.cases import Case
from kvplan_kernels.bench.timing import copies_needed, graph_time
from kvplan_kernels.testing import relative_error

WORKSPACE_BYTES = 256 * 2**20
# XQA rounds queries and probabilities to e4m3: 5.6e-2 on random rows.
BOUND = 0.1
PEERS = (
    ("FlashInfer FA2 fp16", "fa2", torch.float16, torch.float16, (16, 128)),
    ("FlashInfer FA2 fp8", "fa2", torch.float16, torch.float8_e4m3fn, (16, 128)),
    ("FlashInfer XQA fp8", "xqa", torch.bfloat16, torch.float8_e4m3fn, (64, 128)),
)


def peer_times(case: Case) -> list[dict[str, Any]]:
    """Every peer at its best page size, with FlashInfer's version (None: not installed): `seconds` or `failed`."""
    try:
        version = metadata.version("flashinfer-python")
    except metadata.PackageNotFoundError:
        version = None
    return [_best(case, *peer) | {"version": version} for peer in PEERS]


def _best(
    case: Case, name: str, kind: str, dtype: torch.dtype, stored: torch.dtype, pages: tuple[int, ...]
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "case": case.name, "bits": stored.itemsize * 8, "seconds": None}
    failures = []
    for page in pages:
        try:
            seconds, error = _time(case, kind, dtype, stored, page)
        except Exception as failure:
            failures.append(f"page {page}: {type(failure).__name__}: {failure}"[:200])
            continue
        if row["seconds"] is None or seconds < row["seconds"]:
            row |= {"seconds": seconds, "page_size": page, "error": error}
    return row | ({"failed": "; ".join(failures)} if failures else {})


def _time(case: Case, kind: str, dtype: torch.dtype, stored: torch.dtype, page: int) -> tuple[float, float]:
    """Seconds of one step, and the relative error of one request.

    Raises:
        ValueError: a wrong output.
    """
    batch, heads, dim = len(case.lengths), case.kv_heads, case.dim
    tables = [-(-n // page) for n in case.lengths]
    pages = sum(tables)
    q = torch.randn(batch, heads * case.group, dim, dtype=dtype, device="cuda")
    one = torch.empty(2, pages, heads, page, dim, dtype=stored, device="cuda")
    for part in one.flatten(0, 1).split(max(1, 2**27 // (heads * page * dim))):
        part.copy_(torch.randn(part.shape, dtype=torch.float16, device="cuda"))
    copies = [one, *(one.clone() for _ in range(copies_needed(one.nbytes) - 1))]
    out = torch.empty_like(q)
    call = (_fa2 if kind == "fa2" else _xqa)(case, q, stored, page, tables, out)
    out.fill_(torch.nan)
    call(one)
    k, v = (x[: tables[0]].transpose(0, 1).flatten(1, 2)[:, : case.lengths[0]].float() for x in one)
    want = [softmax_logits(rows, k[h], dim**-0.5)[1] @ v[h].double() for h, rows in enumerate(q[0].split(case.group))]
    error = relative_error(out[0], torch.cat(want)).relative
    if not error <= BOUND:
        raise ValueError(f"relative error {error:.1e}")
    return graph_time([partial(call, c) for c in copies]).seconds, error


def _fa2(
    case: Case, q: Tensor, stored: torch.dtype, page: int, tables: list[int], out: Tensor
) -> Callable[[Tensor], object]:
    import flashinfer

    starts = torch.tensor([0, *tables], dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()
    indices = torch.arange(sum(tables), dtype=torch.int32, device="cuda")
    last = torch.tensor([(n - 1) % page + 1 for n in case.lengths], dtype=torch.int32, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"), "HND",
        use_cuda_graph=True, use_tensor_cores=True,
        paged_kv_indptr_buffer=starts.clone(), paged_kv_indices_buffer=indices.clone(),
        paged_kv_last_page_len_buffer=last.clone(), backend="fa2",
    )  # fmt: skip
    wrapper.plan(
        starts, indices, last, q.shape[1], case.kv_heads, case.dim, page, q_data_type=q.dtype, kv_data_type=stored
    )
    return lambda cache: wrapper.run(q, (cache[0], cache[1]), out=out)


def _xqa(
    case: Case, q: Tensor, stored: torch.dtype, page: int, tables: list[int], out: Tensor
) -> Callable[[Tensor], object]:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

    table = torch.zeros(len(tables), max(tables), dtype=torch.int32)
    first = 0
    for b, count in enumerate(tables):
        table[b, :count] = torch.arange(first, first + count)
        first += count
    shared: dict[str, Any] = {
        "workspace_buffer": torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"),
        "block_tables": table.cuda(),
        "seq_lens": torch.tensor(case.lengths, dtype=torch.int32, device="cuda"),
        "max_seq_len": max(case.lengths),
        "bmm1_scale": case.dim**-0.5, "bmm2_scale": 1.0, "kv_layout": "HND", "backend": "xqa", "out": out,
    }  # fmt: skip
    return lambda cache: trtllm_batch_decode_with_kv_cache(query=q, kv_cache=(cache[0], cache[1]), **shared)
