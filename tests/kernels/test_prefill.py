"""Causal attention over dense rows against float64: geometries, lengths, windows, softcap, sinks, traps."""

from __future__ import annotations

import math

import pytest
import torch
from kvplan_kernels.attention.prefill import PrefillConfig, prefill, prefill_and_write, row_parts
from kvplan_kernels.attention.reference import attention_reference, visible_rows
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import allocate
from kvplan_kernels.store.reference import write_reference
from kvplan_kernels.testing import DEVICE, KERNEL, differing_bytes, layout_of, relative_error
from torch import Tensor

NAN = float("nan")
# Several tiles of keys and of rows already at a few dozen tokens.
SMALL = PrefillConfig(block_rows=32, block_keys=16, num_warps=2, num_stages=2)


class Case:
    """A chunk behind a prefix; every row that must not be read is NaN."""

    def __init__(
        self, rows: int, lengths: list[int] | None = None, counts: list[int] | None = None, *, batch: int = 2,
        heads: int = 2, group: int = 1, dims: tuple[int, int] = (64, 64), dtype: torch.dtype = torch.float16,
    ) -> None:  # fmt: skip
        draw = torch.Generator().manual_seed(rows)
        self.batch = len(lengths or counts or [0] * batch)
        self.lengths, self.counts = lengths or [0] * self.batch, counts or [rows] * self.batch
        most = max(1, *self.lengths) + 3

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(DEVICE, dtype)

        self.q = random(self.batch, rows, heads * group, dims[0])
        self.own = [random(self.batch, rows, heads, dim) for dim in dims]
        self.before = [random(self.batch, heads, most, dim) for dim in dims]
        self.sinks = torch.randn(heads * group, generator=draw).to(DEVICE)
        for b, (length, count) in enumerate(zip(self.lengths, self.counts, strict=True)):
            for x in (self.q, *self.own):
                x[b, count:] = NAN
            for x in self.before:
                x[b, :, length:] = NAN
        self.has_prefix = lengths is not None

    def arguments(self) -> dict[str, object]:
        def ints(x: list[int]) -> Tensor:
            return torch.tensor(x, dtype=torch.int32, device=DEVICE)

        prefix = (*self.before, ints(self.lengths)) if self.has_prefix else None
        return {"counts": ints(self.counts), "prefix": prefix}

    def run(self, variant: Variant = PLAIN, config: PrefillConfig | None = SMALL, lse: Tensor | None = None) -> Tensor:
        shape = (*self.q.shape[:3], self.own[1].shape[3])
        out = torch.full(shape, NAN, device=DEVICE)
        returned = prefill(
            self.q, *self.own, variant=variant, out=out, lse=lse, config=config, **self.arguments()
        )  # fmt: skip
        assert returned is out
        return out

    def rows(self, b: int) -> list[Tensor]:
        """K and V of one request, prefix and own rows, `(1, HKV, T, D)`."""
        length, count = self.lengths[b], self.counts[b]
        parts = zip(self.before, self.own, strict=True)
        return [torch.cat([x[b, :, :length], y[b, :count].transpose(0, 1)], 1)[None] for x, y in parts]

    def reference(self, variant: Variant = PLAIN) -> Tensor:
        out = torch.zeros(*self.q.shape[:3], self.own[1].shape[3], dtype=torch.float64, device=DEVICE)
        scale = self.q.shape[3] ** -0.5
        for b, count in enumerate(self.counts):
            total = torch.tensor([self.lengths[b] + count])
            if count:
                out[b, :count] = attention_reference(self.q[b : b + 1, :count], *self.rows(b), total, scale, variant)[0]
        return out

    def check(self, variant: Variant = PLAIN, config: PrefillConfig | None = SMALL) -> None:
        out = self.run(variant, config)
        for b, count in enumerate(self.counts):
            assert (out[b, count:] == 0).all()
        error = relative_error(out, self.reference(variant))
        assert KERNEL.accepts(error), error


@pytest.mark.parametrize("rows", [1, 16, 17, 50])
@pytest.mark.parametrize("group", [1, 7])
def test_chunks_without_a_prefix(rows: int, group: int) -> None:
    Case(rows, group=group).check()


@pytest.mark.parametrize("config", [None, SMALL, PrefillConfig(16, 32, 1, 2), PrefillConfig(64, 16, 4, 3)])
def test_any_tile_is_right(config: PrefillConfig | None) -> None:
    Case(37, [0, 1, 70], group=2).check(config=config)


@pytest.mark.parametrize(
    "dims",
    [(80, 80), (96, 64), (64, 112), (128, 128), (192, 128), (256, 256), (16, 24)],
    ids=lambda d: f"{d[0]}-{d[1]}",
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_head_dimensions(dims: tuple[int, int], dtype: torch.dtype) -> None:
    Case(20, [0, 33], group=2, dims=dims, dtype=dtype).check()


def test_prefix_lengths_and_counts_at_every_edge() -> None:
    Case(20, [0, 1, 15, 16, 17, 32, 40, 40], [20, 20, 1, 0, 16, 17, 3, 0], group=3).check()


@pytest.mark.parametrize("window", [1, 16, 17, 33, 1000])
def test_windows(window: int) -> None:
    Case(37, [0, 5, 48, 90], [37, 30, 1, 37], group=2).check(Variant(window=window))


def test_rows_left_of_every_window_are_not_read() -> None:
    """Engines give pages back that fell out of the window: what lies there is anything."""
    case = Case(20, [90, 40], group=2)
    want = case.reference(Variant(window=24))
    for x in case.before:
        for b, length in enumerate(case.lengths):
            x[b, :, : length - 23] = NAN
    assert KERNEL.accepts(relative_error(case.run(Variant(window=24)), want))


@pytest.mark.parametrize("window", [None, 9])
def test_softcap_and_sinks(window: int | None) -> None:
    case = Case(21, [0, 35], group=3)
    case.q *= 4
    for softcap in (None, 2.0, 50.0):
        case.check(Variant(window, softcap, case.sinks))
    case.sinks[:2] = torch.tensor([-torch.inf, 30.0])
    case.check(Variant(window, None, case.sinks))


def test_log_sums_leave_sinks_to_the_merger() -> None:
    case = Case(19, [0, 35], [19, 4], group=2)
    lse = torch.full(case.q.shape[:3], NAN, device=DEVICE)
    variant = Variant(window=30, softcap=4.0, sinks=case.sinks)
    out = case.run(variant, lse=lse)
    bare = Variant(window=30, softcap=4.0)
    assert KERNEL.accepts(relative_error(out, case.reference(bare)))
    assert (lse[1, 4:] == -torch.inf).all()
    for b, count in enumerate(case.counts):
        k = case.rows(b)[0][0]
        visible = visible_rows(count, k.shape[1], 30, k.device)
        for head in range(case.q.shape[2]):
            logits = 4.0 * torch.tanh(case.q[b, :count, head].double() @ k[head // 2].double().T / 8 / 4.0)
            want = torch.logsumexp(logits.masked_fill(~visible, -torch.inf), 1) / math.log(2)
            torch.testing.assert_close(lse[b, :count, head].double(), want, atol=2e-3, rtol=0)


def test_scores_far_apart_and_far_from_zero() -> None:
    """Logits of some thousands: nothing overflows, one key takes all."""
    case = Case(20, [0, 35])
    case.q *= 300
    case.check()


def test_slices_of_one_projection_are_read_in_place() -> None:
    heads, rows = 2, 20
    packed = torch.randn(2, rows, 4 * heads, 64, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    q, k, v = packed.split([2 * heads, heads, heads], 2)
    want = prefill(q.contiguous(), k.contiguous(), v.contiguous())
    assert torch.equal(prefill(q, k, v), want)


def test_prefill_and_write_attends_to_the_originals_and_fills_the_cache() -> None:
    case = Case(33, counts=[33, 0, 20], dims=(64, 64), heads=2, group=2)
    counts = case.arguments()["counts"]
    caches = [
        allocate(layout_of("int4:token,asym"), num_sequences=3, max_tokens=40, page_size=32, device=DEVICE)
        for _ in range(2)
    ]
    for cache in caches:
        for plane in cache.planes.values():
            plane.zero_()
    out = torch.full(case.q.shape, NAN, device=DEVICE)
    prefill_and_write(case.q, *case.own, caches[0], counts=counts, out=out)
    assert KERNEL.accepts(relative_error(out, case.reference()))
    write_reference(caches[1], *case.own, counts=counts)
    assert caches[0].lengths.tolist() == [33, 0, 20]
    assert not differing_bytes(*caches)


def test_rows_are_read_in_two_parts() -> None:
    assert [row_parts(d) for d in (64, 80, 96, 112, 192, 256)] == [
        (64, 0), (64, 16), (64, 32), (64, 64), (128, 64), (256, 0),
    ]  # fmt: skip


def test_the_door_names_what_differs() -> None:
    case = Case(8, [3, 4])
    q, (k, v) = case.q, case.own
    lengths = torch.tensor([3, 4], dtype=torch.int32, device=DEVICE)
    for message, call in (
        ("k is", lambda: prefill(q, k[:, :4], v)),
        ("v is", lambda: prefill(q, k, v.bfloat16())),
        ("expected \\(B, R, HQ, Dk\\)", lambda: prefill(q[:, :, :1], k, v)),
        ("multiples of 8", lambda: prefill(q[..., :20], k[..., :20], v)),
        ("strides", lambda: prefill(q, k.transpose(1, 3).contiguous().transpose(1, 3), v)),
        ("start", lambda: prefill(q, torch.zeros(k.numel() + 1, dtype=k.dtype, device=DEVICE)[1:].view(k.shape), v)),
        ("above 0", lambda: prefill(q, k, v, sm_scale=0.0)),
        ("fp16 or bf16", lambda: prefill(q.float(), k.float(), v.float())),
        ("prefix v", lambda: prefill(q, k, v, prefix=(case.before[0], case.before[1][:, :, :2], lengths))),
        ("prefix lengths", lambda: prefill(q, k, v, prefix=(*case.before, lengths.long()))),
        ("counts", lambda: prefill(q, k, v, counts=lengths[:1])),
        ("sinks", lambda: prefill(q, k, v, variant=Variant(sinks=case.sinks[:1]))),
        ("lse", lambda: prefill(q, k, v, lse=torch.zeros(2, 8, device=DEVICE))),
        ("out", lambda: prefill(q, k, v, out=torch.zeros(2, 8, device=DEVICE))),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert prefill(q[:, :0], k[:, :0], v[:, :0]).shape == (2, 0, 2, 64)
