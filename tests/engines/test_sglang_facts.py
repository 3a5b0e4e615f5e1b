"""SGLang: growth, the names of all bytes, its own golden figures and logs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.sglang.report import buffers
from kvplan.memory.parts import total
from kvplan.specs.model import ModelSpec

sys.path.insert(0, str(Path(__file__).parent))

from sglang_specs import (
    DENSE,
    cache,
    hybrid,
    kv,
    sparse,
    windowed,
)

SPECS = (DENSE, windowed("gpt_oss"), windowed("gemma2"), hybrid(), sparse())


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    page=st.sampled_from([1, 16, 64]),
    context=st.integers(1, 3000),
    more=st.integers(0, 500),
    sequences=st.integers(0, 9),
)
def test_grows_with_both(spec: ModelSpec, page: int, context: int, more: int, sequences: int) -> None:
    made = cache(spec, page_size=page)
    held = made.held(context, sequences)
    assert held <= made.held(context + more, sequences) <= made.held(context + more, sequences + 1)
    for part in made.parts(context, sequences):
        assert 0 <= total(part.reserved) <= total(part.allocated)


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    page=st.sampled_from([1, 16, 64]),
    context=st.integers(1, 3000),
    batch=st.integers(1, 9),
)
def test_every_byte_has_a_name_or_is_page_rounding(spec: ModelSpec, page: int, context: int, batch: int) -> None:
    kv(spec, context=context, batch=batch, page_size=page)


@pytest.mark.parametrize("spec", SPECS)
def test_parts_take_what_the_buffers_are(spec: ModelSpec) -> None:
    made = cache(spec, page_size=64)
    full, swa = (pages * 64 for pages in (made.full_pages(700, 3), made.swa_pages(700, 3)))
    taken = buffers(made.pools, full, swa, 3 * made.settings.slots_per_request)
    assert sum(taken.values()) == made.held(700, 3)


def test_golden_figures(shared: Path) -> None:
    from golden.run import compare, summary

    found = summary(compare(shared / "data" / "sglang_golden.json"))
    assert found["equal"] == found["records"] >= 222


def test_printed_logs(shared: Path) -> None:
    import json

    from logs.common import DIFFERENT, REPRODUCED
    from logs.sglang import ENGINES, check

    records = json.loads((shared / "data" / "engine_logs.json").read_text(encoding="utf-8"))["records"]
    found = [check(r) for r in records if r["engine"] in ENGINES]
    assert not [f for f in found if f.verdict == DIFFERENT]
    assert all(f.verdict == REPRODUCED for f in found if f.strength == "independent")
    assert len(found) >= 16


def test_a_log_that_does_not_fit_is_different() -> None:
    from logs.sglang import check

    one = {"f": "sglang_kv", "kind": "gqa", "layers": 32, "kv_heads": 8, "dk": 128, "tokens": 10**6, "k_gb": 1.0}
    record = {"id": "x", "engine": "SGLang", "evidence_strength": "independent", "checks": [one], "derivation": ""}
    assert check(record).verdict == "different"
    unread = one | {"kind": "mla", "row_bytes": 700, "kv_gb": 1.0}
    assert check(record | {"checks": [unread]}).verdict == "different"
