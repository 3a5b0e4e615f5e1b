"""The proofs of `kvplan validate` can fail: each is shown a kernel or a cache with the fault it looks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kvplan_kernels.attention.variant import Variant

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.validate import proofs
from kvplan.validate.kinds import attention
from kvplan.validate.tensors import SINK_MASS, Geometry, make_tensors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GEOMETRY = Geometry(2, 70, 4, 2, 64, 64)


def small(fmt: str = "int8") -> proofs.Small:
    layout = bind([Tensor(role, parse_any(fmt), 64) for role in ("k", "v")], 2, "bf16")
    return proofs.small_case(layout, GEOMETRY, page_size=32, dtype=torch.bfloat16, device=DEVICE, seed=3)


def verdicts(case: proofs.Small) -> dict[str, bool]:
    return {c.name: c.passed for c in proofs.prove(case)}


@pytest.mark.parametrize(
    ("fmt", "proofs"),
    [("bf16", 4), ("int8", 5), ("int8:head", 5), ("fp8_e4m3:token", 5), ("int4:channel/16,asym", 6),
     ("int8,recent=80", 4), ("nvfp4", 5), ("mxfp8", 5), ("int3,rot", 5)],
)  # fmt: skip
def test_sound_kernels_pass(fmt: str, proofs: int) -> None:
    found = verdicts(small(fmt))
    assert all(found.values()), found
    assert len(found) == proofs


def test_a_kernel_that_ignores_scales_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small(), attention.decode

    def ignores_scales(q: Any, cache: Any, **kw: Any) -> Any:
        frozen = cache.clone()
        frozen.planes["meta_fp16"] = case.cache.planes["meta_fp16"]
        return real(q, frozen, **kw)

    monkeypatch.setattr(attention, "decode", ignores_scales)
    found = verdicts(case)
    assert not found["doubled K scales obeyed"]
    assert found["kernel on a small shuffled cache"]


def test_a_kernel_that_reads_another_copy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small(), attention.decode
    monkeypatch.setattr(attention, "decode", lambda q, cache, **kw: real(q, case.cache, **kw))
    assert not verdicts(case)["one flipped V code obeyed"]


def test_a_kernel_that_forgets_waiting_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small("int8,recent=16"), attention.decode

    def forgets(q: Any, cache: Any, **kw: Any) -> Any:
        stale = cache.clone()
        stale.planes["v_recent"].copy_(case.cache.planes["v_recent"].roll(1, 2))
        return real(q, stale, **kw)

    monkeypatch.setattr(attention, "decode", forgets)
    found = verdicts(case)
    assert not found["kernel on a small shuffled cache"] and not found["one flipped recent V value obeyed"]


def test_a_kernel_that_forgets_the_variant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = Variant(window=40, softcap=4.0, sinks=torch.linspace(-1, 1, 4, device=DEVICE))
    case, real = replace(small(), variant=variant), attention.decode
    assert all(verdicts(case).values())
    monkeypatch.setattr(attention, "decode", lambda q, cache, *, variant, **kw: real(q, cache, **kw))
    assert not verdicts(case)["kernel on a small shuffled cache"]


def test_a_kernel_that_reads_beyond_a_length_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cache has no row behind the last one: only reused pages show it."""
    case, real = small(), attention.decode

    def reads_one_more(q: Any, cache: Any, **kw: Any) -> Any:
        longer = cache.clone()
        longer.lengths = (cache.lengths + 1).clamp(max=70)
        return real(q, longer, **kw)

    monkeypatch.setattr(attention, "decode", reads_one_more)
    found = verdicts(case)
    assert not found["reused pages"] and found["kernel on a small shuffled cache"]


def test_one_wrong_byte_is_caught() -> None:
    case = small()
    case.cache.planes["k_codes"].view(torch.uint8).view(-1)[77] ^= 1
    found = verdicts(case)
    assert not found["codes bit-exact"]


def test_an_unwritten_output_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small(), attention.decode

    def skips_a_head(q: Any, cache: Any, *, out: Any, **kw: Any) -> Any:
        done = real(q, cache, **kw)
        out[:, 1:] = done[:, 1:]
        return out

    monkeypatch.setattr(attention, "decode", skips_a_head)
    assert not verdicts(case)["kernel on a small shuffled cache"]


def test_tensors_are_seedable_and_structured() -> None:
    g = Geometry(1, 1024, 4, 2, 64, 64)
    a, b, c = (make_tensors(g, seed=s, dtype=torch.float16, device="cpu") for s in (1, 1, 2))
    assert torch.equal(a.k, b.k) and torch.equal(a.q, b.q) and not torch.equal(a.v, c.v)
    q = a.q[0].view(2, 2, 64).double()
    p = torch.softmax(torch.einsum("hgd,thd->hgt", q, a.k[0].double()) / 8, -1)
    sink = p[..., :4].sum(-1).mean()
    assert abs(float(sink) - SINK_MASS) < 0.2
    mean = a.k[0, 4:].float().mean(0).abs()
    assert float(mean.max()) > 8 * float(mean.median())
