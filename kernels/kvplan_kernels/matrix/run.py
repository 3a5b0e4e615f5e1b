"""Run one case: write, compare bit by bit, read it back through every kernel, and once more with something changed.

A phase is one function in PHASES. What the library's doors refuse is counted as refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from kvplan.errors import UnsupportedError
from kvplan_kernels.attention.decode import decode, make_workspace
from kvplan_kernels.attention.door import check_supported
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.unfused import dequantise, unfused_decode
from kvplan_kernels.attention.variant import Variant
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.grid import count_ties
from kvplan_kernels.matrix.again import decode_again
from kvplan_kernels.matrix.cases import SINGLES, Case
from kvplan_kernels.matrix.data import make_queries, make_rows, make_variant, softmax_scale
from kvplan_kernels.matrix.memory import declared_bytes, invert, make_cache, soil
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache, get_static
from kvplan_kernels.testing import DEVICE, KERNEL, Tolerance, as_bytes, relative_error, written_bytes

# Static scales cover this part of the data in cases that are to clip.
CLIP_MARGIN = 0.5


@dataclass
class Outcome:
    """What a case did.

    Attributes:
        phases: phase to `ok`, `failed`, or `refused` with the door's words.
        failures: one line each.
        ties: values exactly halfway between two codes.
        error: largest relative error of a decode.
    """

    case: Case
    phases: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    ties: int = 0
    error: float = 0.0


@dataclass
class Run:
    """A case while it runs: the cache as the kernel wrote it, the rows it was given, what attention should give."""

    case: Case
    outcome: Outcome
    cache: Cache
    k: Tensor
    v: Tensor
    q: Tensor
    sm_scale: float
    variant: Variant
    seed: int

    def writer(self, write: Callable[..., None], saturated: Tensor | None = None) -> Callable[[Cache], None]:
        """`write` as the case's pattern of calls, static scales first."""

        def run(cache: Cache) -> None:
            margin = CLIP_MARGIN if self.case.calibration == "clip" else 1.0
            calibrate_cache(cache, self.k, self.v, margin)
            counts = torch.tensor(self.case.counts, dtype=torch.int32, device=self.k.device)
            for first, last in chunks(self.case):
                now = (counts - first).clamp(0, last - first)
                write(cache, self.k[:, first:last], self.v[:, first:last], counts=now, saturated=saturated)

        return run

    def expected(self, cache: Cache, *, fp8_domain: bool = False) -> Tensor:
        """Float64 attention on what `cache` holds."""
        k, v = (lambda b, role=role: read_reference(cache, role, b) for role in "kv")
        return attention_reference(
            self.q, k, v, cache.lengths, self.sm_scale, self.variant, fp8_domain=fp8_domain
        )  # fmt: skip

    def decode(self, cache: Cache, **given: object) -> Tensor:
        """The kernel's output in fp32, written over NaN."""
        shape = (*self.q.shape[:-1], self.case.dims[1])
        out = torch.full(shape, torch.nan, device=self.q.device)
        return decode(given.pop("q", self.q), cache, sm_scale=self.sm_scale, variant=self.variant, out=out, **given)  # type: ignore[arg-type]

    def check(
        self, what: str, out: Tensor, want: Tensor, tolerance: Tolerance = KERNEL, *, empty: bool = True
    ) -> None:
        """Hold every request to the tolerance table by itself; with `empty` one of length 0 gives zeros."""
        # The output is fp32: beside a sink far above all logits the exact result is smaller than its smallest number.
        want = want.float()
        for b, count in enumerate(self.case.counts):
            if count == 0 and empty:
                self.require(not bool(out[b].any()), f"{what}: request {b} of length 0 is not zero")
                continue
            finite = want[b].isfinite()
            error = relative_error(out[b][finite], want[b][finite]) if finite.any() else None
            good = bool((out[b].isfinite() == finite).all()) and (error is None or tolerance.accepts(error))
            self.require(good, f"{what}: request {b} of {count} tokens: {error}")
            if error is not None and tolerance is KERNEL:
                self.outcome.error = max(self.outcome.error, error.relative)

    def require(self, good: bool, failure: str) -> None:
        if not good:
            self.outcome.failures.append(failure)


def chunks(case: Case) -> list[tuple[int, int]]:
    """(first, last) tokens of each call."""
    most = max(case.counts)
    cuts = [0, most]
    if case.write == "pieces":
        cuts = [0, 7, 8, most]
    elif case.write == "tokens":
        cuts = [0, *range(max(0, most - SINGLES), most + 1)]
    cuts = sorted({min(cut, most) for cut in cuts})
    return list(pairwise(cuts))


def run_append(run: Run) -> None:
    """Codes, scales, rings and counters bit by bit; exactly the declared bytes are written, guard pages are not."""
    oracle = make_cache(run.case, run.case.page_size, str(run.k.device))
    clipped = [torch.zeros(2, run.case.heads, dtype=torch.int64, device=run.k.device) for _ in range(2)]
    touched = written_bytes(oracle, run.writer(write_reference, clipped[0]))
    invert(run.cache, oracle)
    run.writer(append, clipped[1])(run.cache)
    declared = declared_bytes(run.cache, run.case.counts)
    for name, mask in declared.items():
        got, want = as_bytes(run.cache.planes[name]), as_bytes(oracle.planes[name])
        run.require(
            torch.equal(touched[name], mask), f"append: the reference writes other bytes of {name} than declared"
        )
        wrong = int(((got != want) & mask).sum())
        run.require(not wrong, f"append: {wrong} bytes of {name} differ from the reference or are not written")
        beyond = int(((got == want) & ~mask).sum())
        run.require(not beyond, f"append: {beyond} bytes of {name} that no row owns are written")
    run.require(run.cache.lengths.tolist() == list(run.case.counts), "append: lengths differ")
    # The reference ran twice, once for each sentinel.
    run.require(
        torch.equal(clipped[0], 2 * clipped[1]),
        f"append: saturated {clipped[1].tolist()}, not {clipped[0].tolist()} / 2",
    )
    run.outcome.ties = sum(_ties(run, role, x) for role, x in (("k", run.k), ("v", run.v)))
    soil(run.case, run.cache, declared, lambda old: _fill(run, old))


def _ties(run: Run, role: str, x: Tensor) -> int:
    layout, found = run.cache.layout, 0
    if layout.view(role).quantised:
        for b, count in enumerate(run.case.counts):
            rows = x[b, : layout.tensor(role).split(count)[0]].transpose(0, 1)
            found += count_ties(layout, role, rows, get_static(run.cache, role)) if rows.shape[1] else 0
    return found


def _fill(run: Run, cache: Cache) -> None:
    """Rows of a sequence that had every page before."""
    draw = torch.Generator().manual_seed(run.seed + 7)
    cache.lengths.zero_()
    shape = (cache.num_sequences, max(1, *run.case.counts), run.case.heads)
    k, v = (torch.randn(*shape, dim, generator=draw).to(run.k.device) for dim in run.case.dims)
    write_reference(cache, k * 50, v * 50)


def run_decode(run: Run) -> None:
    """Fused attention against float64, then again with something changed."""
    check_supported(run.cache.layout)
    out = run.decode(run.cache, config=run.case.config)
    run.check("decode", out, run.expected(run.cache))
    decode_again(run, out)


def run_unfused(run: Run) -> None:
    """Dequantised rows against the reference, then torch's attention on them, all in fp32."""
    cache, tokens = run.cache, max(1, *run.case.counts)
    shape = (cache.num_sequences, run.case.heads, tokens)
    dense = [torch.full((*shape, dim), torch.nan, device=run.k.device) for dim in run.case.dims]
    dequantise(cache, dense[0], dense[1])
    for b, count in enumerate(run.case.counts):
        for role, out in zip("kv", dense, strict=True):
            want = read_reference(cache, role, b, turned=True)
            # scale * code + zero may be one fused operation: a last place of the larger summand.
            slack = want.abs().amax() * 2.0**-22 if count and cache.layout.tensor(role).asym else 0.0
            run.require(bool(((out[b, :, :count] - want).abs() <= slack).all()), f"dequantise: {role} of request {b}")
            run.require(not bool(out[b, :, count:].any()), f"dequantise: {role} of request {b} beyond its length")
    if run.case.rows > 1 or run.case.variant != "plain":
        # Torch's attention has neither; what these cases add is in the fused kernel alone.
        return
    out = unfused_decode(run.q.float(), cache, run.sm_scale, num_tokens=tokens)
    run.check("unfused", out, run.expected(cache))


def run_fusion(run: Run) -> None:
    """Fused decode takes its declared workspace and no other memory."""
    if run.q.device.type != "cuda":
        raise UnsupportedError("memory is measured on a GPU only", "run the matrix on a GPU")
    check_supported(run.cache.layout)
    out = torch.empty((*run.q.shape[:-1], run.case.dims[1]), device="cuda")
    space = make_workspace(run.q, run.cache, run.case.config)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    decode(run.q, run.cache, variant=run.variant, out=out, workspace=space, config=run.case.config)
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    run.require(taken == 0, f"fusion: decode took {taken} bytes beyond its workspace of {space.nbytes}")


PHASES: dict[str, Callable[[Run], None]] = {
    "append": run_append,
    "decode": run_decode,
    "unfused": run_unfused,
    "fusion": run_fusion,
}


def run_case(case: Case, device: str = DEVICE, seed: int = 0) -> Outcome:
    """Run every phase of a feasible case."""
    outcome = Outcome(case)
    k, v = make_rows(case, device, seed)
    run = Run(
        case,
        outcome,
        cache=make_cache(case, case.page_size, device),
        k=k,
        v=v,
        q=make_queries(case, device, seed),
        sm_scale=softmax_scale(case, k),
        variant=make_variant(case, device, seed),
        seed=seed,
    )
    for name, phase in PHASES.items():
        failed = len(outcome.failures)
        try:
            phase(run)
            outcome.phases[name] = "ok"
        except UnsupportedError as refused:
            outcome.phases[name] = f"refused: {refused.message}"
        # A phase that breaks off is a failure like any other: the matrix goes on.
        except Exception as error:
            outcome.failures.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        if len(outcome.failures) > failed:
            outcome.phases[name] = "failed"
    return outcome
