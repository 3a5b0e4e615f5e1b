"""MLX-LM: buffers by replayed calls, each rule with its arithmetic written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.mlx.rows import chunked_rows, growing_rows, quantised, rotating_rows
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.parts import total
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.plan.resolve import resolve
from kvplan.specs.model import ModelSpec

REPO = Path(__file__).resolve().parents[2]


def model(*groups: dict[str, Any], layers: int = 2) -> ModelSpec:
    body = {"kvplan_spec": 1, "id": "small", "max_context": 1 << 20, "layers": layers, "native_dtype": "bfloat16"}
    return ModelSpec.model_validate(body | {"layer_groups": list(groups)})


def attention(layers: Any = "rest", **more: Any) -> dict[str, Any]:
    return {"kind": "attention", "layers": layers, "q_heads": 8, "kv_heads": 4, "head_dim": 128, **more}


def plan(spec: ModelSpec, context: int, *options: str, batch: int = 1, kv: str | None = None) -> Plan:
    request = PlanRequest(
        model=spec.id, engine="mlx", context=context, batch=batch, kv=kv, engine_options=options, beyond_max=True
    )
    return make_plan(request, spec)


def held(spec: ModelSpec, context: int, *options: str, **more: Any) -> int:
    made = plan(spec, context, *options, **more).kv
    assert made is not None
    assert (
        made.logical_bytes + made.reserved_bytes + made.padding_bytes - made.engine_saves_bytes == made.allocated_bytes
    )
    return made.allocated_bytes


@pytest.mark.parametrize(
    ("calls", "rows"),
    [
        ((1,), 256),
        ((256,), 256),
        ((257,), 512),
        ((256, 1), 512),
        # 100 used of 256; 200 do not fit: cut to 100, and 256 more.
        ((100, 200), 356),
        # 512 used of 612, a multiple of 256: nothing is cut.
        ((100, 300, 112, 200), 612 + 256),
        ((2048, 2048, 5), 4096 + 256),
    ],
)
def test_growing_buffers(calls: tuple[int, ...], rows: int) -> None:
    assert growing_rows(calls) == rows


@pytest.mark.parametrize(
    ("calls", "rows"),
    [
        # A call of several tokens is kept whole ...
        ((600,), 600),
        # ... and cut to the window by the next token.
        ((600, 1), 512),
        # 300 rows, 256 more, at most the window.
        ((300, 1), 512),
        ((100, 1), 356),
        # Single tokens grow by 256.
        ((1,) * 257, 512),
        # 511 of the 600 rows, and 300 new ones.
        ((600, 300), 811),
        # 10 of the 266 rows were written.
        ((9, 1, 20), 30),
    ],
)
def test_rotating_buffers(calls: tuple[int, ...], rows: int) -> None:
    assert rotating_rows(calls, 512) == rows


def test_chunked_buffers() -> None:
    assert chunked_rows((300, 1), 512) == 512
    assert chunked_rows((600, 1), 512, cut=False) == 768
    # Cut to 512 rows, of which 600 - 256 are used: one more fits.
    assert chunked_rows((600, 1), 512) == 512
    # 8,192 used and full: 256 more, cut again before the next token.
    assert chunked_rows((2048,) * 4 + (1,), 8192) == 8192 + 256
    assert chunked_rows((2048,) * 4 + (1, 1), 8192) == 8192


@given(st.lists(st.integers(1, 700), min_size=1, max_size=12), st.sampled_from([1, 16, 300, 512]))
def test_buffers_hold_what_is_read(calls: list[int], window: int) -> None:
    tokens = sum(calls)
    assert tokens <= growing_rows(calls) < tokens + 2 * 256
    assert min(tokens, window) <= rotating_rows(calls, window) <= max(window, window - 1 + max(calls))
    assert chunked_rows(calls, 10**6) == growing_rows(calls)
    assert quantised(calls, tokens) and not quantised(calls, tokens + 1)


def test_bytes_of_a_growing_cache() -> None:
    spec = model(attention())
    # 1000 tokens: 999 take 1,024 rows, and the last one fits.
    assert held(spec, 1000) == 2 * 1024 * 4 * 2 * 128 * 2
    made = plan(spec, 1000).kv
    assert made is not None and made.reserved_bytes == 2 * 24 * 4 * 2 * 128 * 2
    # 2,048 + 1: the buffer is full, the last token adds 256.
    assert held(spec, 2049, batch=3) == 3 * 2 * 2304 * 2048
    assert held(spec, 300, "prefill_step_size=256", "decode_tokens=10") == 2 * 512 * 2048


def test_quantised_from_a_length_on() -> None:
    spec = model(attention())
    # Full precision below 5,000 tokens: 4,096 + 704 rounded up to 768.
    assert held(spec, 4800, kv="4") == 2 * (4096 + 768) * 2048
    note = plan(spec, 4800, kv="4").notes
    assert any("Nothing is quantised yet" in n for n in note)
    # 4 bits and a 16-bit scale and bias per 64 values: 128 x (64 + 8) bytes of K and V ... of 4 heads.
    row = 4 * 2 * (128 * 4 // 8 + 2 * 2 * 2)
    assert held(spec, 4800, "quantized_kv_start=0", kv="4") == 2 * 4864 * row
    # Later the full-precision rows before the conversion are the most: 4,999 tokens in 5,120 rows.
    assert held(spec, 6000, kv="4") == 2 * 5120 * 2048
    cache: Any = resolve(PlanRequest(model="small", engine="mlx", context=6000, kv="4"), spec).ranks[0]
    after = cache.cache.after(cache.cache.calls(6000), 1)
    assert sum(total(p.allocated) for p in after) == 2 * (4096 + 2048) * row
    figures = {f.name: f.value for f in cache.cache.figures(6000)}
    assert figures["nbytes of one sequence"] == 2 * (4096 + 2048) * row


@pytest.mark.parametrize(("bits", "size", "row"), [
    ("8", 64, 128 + 8), ("3", 64, 48 + 8), ("2", 128, 32 + 4), ("4", 32, 64 + 16),
])  # fmt: skip
def test_bits_and_group_sizes(bits: str, size: int, row: int) -> None:
    options = (f"kv_group_size={size}", "quantized_kv_start=0")
    assert held(model(attention()), 256, *options, kv=bits) == 2 * 256 * 4 * 2 * row


@pytest.mark.parametrize("bits", ["5", "6", "7"])
def test_bits_that_fail(bits: str) -> None:
    with pytest.raises(UsageError, match="no cache format"):
        held(model(attention()), 256, kv=bits)


def test_windows_rotate_and_are_not_quantised() -> None:
    spec = model(attention([0], name="a", retain={"window": 512}), attention(name="b"))
    assert held(spec, 2001) == (512 + 2048) * 2048
    figures = plan(spec, 2001).engine
    assert figures is not None
    # Right after the prompt's 2,000 tokens: all of them in the window's buffer too.
    after = {f.name: f.value for f in figures.figures}
    assert after["nbytes right after the prompt"] == (2000 + 2048) * 2048
    with pytest.raises(UsageError, match="cannot quantise a rotating cache"):
        held(spec, 8192, kv="4")
    assert held(spec, 2001, kv="4") == (512 + 2048) * 2048


def test_max_kv_size() -> None:
    spec = model(attention())
    assert held(spec, 2001, "max_kv_size=1k") == 2 * 1024 * 2048
    made = plan(spec, 2001, "max_kv_size=1k").kv
    assert made is not None and made.engine_saves_bytes == 2 * (2001 - 1024) * 2048
    with pytest.raises(UsageError, match="rotating"):
        held(spec, 6000, "max_kv_size=1k", kv="8")
    mixed = model(attention([0], name="a", retain={"window": 512}), attention(name="b"))
    assert any("max_kv_size has no effect" in n for n in plan(mixed, 100, "max_kv_size=64").notes)


def test_chunks_count_their_largest_buffer() -> None:
    spec = model(attention(retain={"chunk": 512}))
    assert held(spec, 5000) == 2 * (512 + 256) * 2048
    assert held(spec, 300) == 2 * 512 * 2048


def test_latents_states_and_what_has_no_rule() -> None:
    latent = {"kind": "latent", "layers": [0], "q_heads": 8, "width": {"nope": 512, "rope": 64}}
    state = {
        "kind": "state", "layers": "rest", "dtype": {"recurrent": "float32", "conv": "model"},
        "state": {"type": "short_conv", "dim": 64, "conv_kernel": 3},
    }  # fmt: skip
    assert held(model(latent, state), 100) == 256 * 576 * 2 + 64 * 2 * 2
    with pytest.raises(UsageError, match="for the latent"):
        held(model(latent, state), 100, kv="4")
    cross = {
        "kind": "cross", "layers": 2, "q_heads": 4, "kv_heads": 4, "head_dim": 64, "overlay": True,
        "encoder_tokens": {"per": "input", "count": 10},
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match="cross"):
        held(model(attention(layers=2), cross), 100)
    with pytest.raises(UnsupportedError, match="multiple of 256"):
        held(model(attention()), 100, "prefill_step_size=100")
    with pytest.raises(UsageError, match="decode_tokens is at least 1"):
        held(model(attention()), 100, "decode_tokens=0")
    with pytest.raises(UsageError, match="no group size 16"):
        held(model(attention()), 100, "kv_group_size=16")


MIXED = model(
    attention([0], name="a", retain={"window": 300}), attention([1], name="b", retain={"chunk": 600}),
    attention(name="c"), layers=3,
)  # fmt: skip
PLAIN = model(attention())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7000), st.integers(1, 500), st.integers(0, 3), st.sampled_from([None, "4"]), st.integers(1, 300))
def test_it_grows(context: int, more: int, sequences: int, kv: str | None, decode: int) -> None:
    spec = PLAIN if kv else MIXED
    request = PlanRequest(model="small", engine="mlx", context=8192, kv=kv, engine_options=(f"decode_tokens={decode}",))
    cache: Any = resolve(request, spec).ranks[0]
    assert cache.cache.held(context, sequences) <= cache.cache.held(context + more, sequences)
    assert cache.cache.held(context, sequences) <= cache.cache.held(context, sequences + 1)
    assert cache.cache.held(context, 0) == 0


def test_the_golden_file(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    from golden.run import compare

    outcomes = compare(shared / "data" / "mlx_golden.json")
    assert len(outcomes) > 200
    assert [o for o in outcomes if o.verdict != "equal"] == []
