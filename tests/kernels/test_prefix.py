"""A prefix hit against float64: both paths, formats, prefix lengths, windows, softcap, sinks, counts, traps."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.attention.config import TABLE
from kvplan_kernels.attention.prefix import (
    CROSSOVER,
    Path,
    crossover_rows,
    make_scratch,
    prefix_attention,
    prefix_attention_and_write,
)
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import DEVICE, KERNEL, differing_bytes, layout_of, poison, relative_error
from torch import Tensor

NAN = float("nan")
HEADS, PAGE = 2, 32
PATHS: tuple[Path, ...] = ("fused", "dequantise")
both_paths = pytest.mark.parametrize("path", PATHS)


class Case:
    """A chunk of `rows` rows behind a quantised prefix; unused bytes of the cache and rows beyond a count are NaN."""

    def __init__(
        self, fmt: str, rows: int, lengths: list[int], counts: list[int] | None = None, *, v: str = "", group: int = 2,
        dims: tuple[int, int] = (64, 64), dtype: torch.dtype = torch.float16,
    ) -> None:  # fmt: skip
        self.counts = counts or [rows] * len(lengths)
        draw = torch.Generator().manual_seed(7)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(DEVICE, dtype)

        batch, most = len(lengths), max(lengths) + rows
        self.cache = allocate(
            layout_of(fmt, v, dims, HEADS), num_sequences=batch, max_tokens=most, page_size=PAGE, device=DEVICE,
            shuffle=draw,
        )  # fmt: skip
        poison(self.cache, 0xFF)
        before = [random(batch, max(1, *lengths), HEADS, dim) for dim in dims]
        calibrate_cache(self.cache, *before)
        write_reference(self.cache, *before, counts=torch.tensor(lengths))
        self.q = random(batch, rows, HEADS * group, dims[0])
        self.own = [random(batch, rows, HEADS, dim) for dim in dims]
        self.sinks = torch.randn(HEADS * group, generator=draw).to(DEVICE)
        for b, count in enumerate(self.counts):
            for x in (self.q, *self.own):
                x[b, count:] = NAN

    def run(self, path: Path, variant: Variant = PLAIN, **more: object) -> Tensor:
        counts = torch.tensor(self.counts, dtype=torch.int32, device=DEVICE)
        out = torch.full((*self.q.shape[:3], self.own[1].shape[3]), NAN, device=DEVICE)
        scratch = make_scratch(self.q, self.cache)
        for x in scratch:
            x.fill_(NAN)
        arguments = {"variant": variant, "path": path, "out": out, "scratch": scratch, **more}
        if self.counts != [self.q.shape[1]] * len(self.counts):
            arguments["counts"] = counts
        assert prefix_attention(self.q, *self.own, self.cache, **arguments) is out
        return out

    def reference(self, variant: Variant = PLAIN) -> Tensor:
        """Float64 attention on the dequantised prefix and the original rows of the chunk."""
        out = torch.zeros((*self.q.shape[:3], self.own[1].shape[3]), dtype=torch.float64, device=DEVICE)
        for b, count in enumerate(self.counts):
            k, v = (
                torch.cat([read_reference(self.cache, role, b).double(), x[b, :count].transpose(0, 1).double()], 1)
                for role, x in zip("kv", self.own, strict=True)
            )
            total = torch.tensor([k.shape[1]])
            scale = self.q.shape[3] ** -0.5
            if count:
                rows = self.q[b : b + 1, :count]
                out[b, :count] = attention_reference(rows, k[None], v[None], total, scale, variant)[0]
        return out

    def check(self, path: Path, variant: Variant = PLAIN) -> None:
        out = self.run(path, variant)
        for b, count in enumerate(self.counts):
            assert (out[b, count:] == 0).all()
        error = relative_error(out, self.reference(variant))
        assert KERNEL.accepts(error), error


@both_paths
@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("fp16", ""), ("int8", ""), ("fp8_e4m3", "fp8_e4m3:token"), ("int4:token,asym", ""),
        ("int4:group/32,asym", "int8:head"), ("nvfp4", ""), ("int8:channel/16", "int8:token,recent=8"),
        ("int4:token,asym,rot", ""),
    ],
)  # fmt: skip
def test_formats(k: str, v: str, path: Path) -> None:
    Case(k, 5, [0, 37], v=v).check(path)


@both_paths
def test_prefix_lengths_and_counts_at_every_edge(path: Path) -> None:
    Case("int8", 6, [0, 1, 31, 32, 33, 64, 70, 0], [6, 6, 5, 1, 6, 3, 0, 0]).check(path)


@both_paths
@pytest.mark.parametrize("window", [1, 33, 1000])
def test_windows(window: int, path: Path) -> None:
    Case("int8", 6, [0, 3, 40, 65]).check(path, Variant(window=window))


@both_paths
def test_softcap_and_sinks_are_applied_once(path: Path) -> None:
    case = Case("int8", 5, [0, 40], [5, 3])
    case.check(path, Variant(None, 3.0, case.sinks))
    case.check(path, Variant(20, None, case.sinks))


@both_paths
@pytest.mark.parametrize("group", [1, 7])
def test_groups_of_heads(group: int, path: Path) -> None:
    Case("int8", 4, [33], group=group).check(path)


@both_paths
@pytest.mark.parametrize("dims", [(80, 80), (128, 64), (192, 128)], ids=lambda d: f"{d[0]}-{d[1]}")
def test_head_dimensions(dims: tuple[int, int], path: Path) -> None:
    Case("int8", 3, [33], dims=dims).check(path)


@both_paths
def test_chunk_after_chunk_fills_the_cache_as_one_write_does(path: Path) -> None:
    """The rows of a chunk are appended after its attention; the next chunk finds them quantised."""
    case, whole = Case("int4:token,asym", 8, [0, 21]), Case("int4:token,asym", 8, [0, 21])
    for start in (0, 3):
        part = slice(start, 3 if start == 0 else 8)
        step = Case("int4:token,asym", 8, [0, 21])
        step.cache, step.counts = case.cache, [part.stop - start] * 2
        step.q, step.own = case.q[:, part], [x[:, part] for x in case.own]
        want = step.reference()
        out = torch.full(step.q.shape, NAN, device=DEVICE)
        prefix_attention_and_write(step.q, *step.own, case.cache, path=path, out=out)
        assert KERNEL.accepts(relative_error(out, want))
    write_reference(whole.cache, *whole.own)
    assert case.cache.lengths.tolist() == [8, 29]
    assert not differing_bytes(case.cache, whole.cache)


def test_scratch_may_be_shorter_than_the_cache_and_is_what_the_layout_says() -> None:
    case = Case("int4:token,asym", 5, [0, 37])
    scratch = make_scratch(case.q, case.cache, 37)
    assert sum(x.nbytes for x in scratch) == case.cache.layout.dense_bytes(2, 37)
    error = relative_error(case.run("dequantise", scratch=scratch), case.reference())
    assert KERNEL.accepts(error), error


def test_rounding_the_scratch_to_bf16_keeps_the_tolerance() -> None:
    Case("int8", 5, [0, 37], dtype=torch.bfloat16).check("dequantise")


def test_the_crossover_chooses_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CROSSOVER.keys() == TABLE.keys()
    assert crossover_rows(layout_of("int8"), 4) * 4 == CROSSOVER["int8"]
    assert crossover_rows(layout_of("int8"), 10**6) == 1
    taken: list[str] = []
    monkeypatch.setitem(CROSSOVER, "int8", 8)
    monkeypatch.setattr("kvplan_kernels.attention.prefix._fused", lambda *a: taken.append("fused"))
    monkeypatch.setattr("kvplan_kernels.attention.prefix.prefill", lambda *a, **k: taken.append("dequantise"))
    for rows in (3, 4):
        case = Case("int8", rows, [20])
        prefix_attention(case.q, *case.own, case.cache)
    assert taken == ["fused", "dequantise"]


def test_the_door_names_what_differs() -> None:
    case = Case("int8", 4, [20])
    cache: Cache = case.cache
    k, v = case.own
    with pytest.raises(ValueError, match="the cache has"):
        prefix_attention(case.q, k[:, :, :1], v[:, :, :1], cache)
    with pytest.raises(ValueError, match="path is 'dense'"):
        prefix_attention(case.q, k, v, cache, path="dense")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefix k"):
        prefix_attention(
            case.q, k, v.clone(), cache, path="dequantise", scratch=tuple(make_scratch(k.bfloat16(), cache))
        )
