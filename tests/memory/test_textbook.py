"""Closed forms that anyone can check on paper."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import kvplan.formats
import kvplan.memory
from kvplan.breakdown import leaves
from kvplan.formats.grammar import parse_any
from kvplan.memory.figures import KvFigures, default_page_size, held_bytes, kv_figures, logical_tree
from kvplan.memory.groups import CacheFormats, CacheGroup, cache_groups
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec
from kvplan.units import GIB, MIB


def groups(
    spec: ModelSpec | str, k: str = "bf16", v: str = "bf16", tp: int = 1, latent: str = "bf16", index: str = "bf16"
):
    spec = load_model(spec) if isinstance(spec, str) else spec
    return cache_groups(spec, CacheFormats(*(parse_any(f) for f in (k, v, latent, index))), tp)


def figures(made: tuple[CacheGroup, ...], context: int, batch: int = 1) -> KvFigures:
    return kv_figures(made, made, 1, context, batch, default_page_size(made))


def toy(**changes: object) -> ModelSpec:
    group = {"kind": "attention", "layers": 32, "q_heads": 32, "kv_heads": 8, "head_dim": 128, **changes}
    common = {"kvplan_spec": 1, "id": "toy", "params": {"total": 1}, "max_context": 65536, "native_dtype": "float16"}
    return ModelSpec.model_validate({**common, "layers": 32, "layer_groups": [group]})


@pytest.mark.parametrize(
    ("fmt", "nbytes"),
    [
        ("fp16", 4 * GIB),
        ("bf16", 4 * GIB),
        ("int8", 2 * GIB),
        ("fp8_e4m3", 2 * GIB),
        ("fp8_e5m2:head", 2 * GIB),
        ("int2", GIB // 2),
    ],
)
def test_payload_of_the_textbook_case(fmt: str, nbytes: int) -> None:
    """L=32, B=1, Hkv=8, S=32768, D=128."""
    assert figures(groups(toy(), fmt, fmt), 32768).payload_bytes == nbytes


def test_formula_of_the_textbook_case() -> None:
    tree = logical_tree(groups(toy(), "fp16", "fp16"), 32768, 1)
    assert [leaf.formula for leaf in leaves(tree)] == ["32 layers x 8 kv heads x 32,768 tokens x 512 bytes"]
    assert tree.nbytes == 4 * GIB


@pytest.mark.parametrize(
    ("fmt", "nbytes"), [("fp16", 512), ("int8:token", 260), ("int8:token,asym", 264), ("fp8_e4m3", 256), ("int2", 68)]
)
def test_one_token_of_one_head(fmt: str, nbytes: int) -> None:
    spec = toy(kv_heads=1)
    assert figures(groups(spec, fmt, fmt), 1).logical_bytes == 32 * nbytes


def test_fp8_per_tensor_is_exactly_half_and_its_scales_stand_apart() -> None:
    half, full = figures(groups(toy(), "fp8_e4m3", "fp8_e4m3"), 777), figures(groups(toy()), 777)
    assert 2 * half.logical_bytes == full.logical_bytes
    assert 2 * half.allocated_bytes == full.allocated_bytes
    assert (half.constant_bytes, full.constant_bytes) == (32 * 2 * 4, 0)


@pytest.mark.parametrize("q_heads", [8, 16, 32, 128])
def test_query_heads_change_no_byte(q_heads: int) -> None:
    assert figures(groups(toy(q_heads=q_heads), "int8", "int8"), 5000) == figures(groups(toy(), "int8", "int8"), 5000)


def test_nothing_in_memory_or_formats_takes_a_number_of_query_heads() -> None:
    for package in (kvplan.memory, kvplan.formats):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            source = inspect.getsource(import_module(info.name))
            names = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
            names |= {n.arg for n in ast.walk(ast.parse(source)) if isinstance(n, ast.arg)}
            names |= {n.attr for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
            guilty = {n for n in names if re.search(r"(^|_)(q|query|attention)_?heads?($|_)|^hq$", n.lower())}
            assert not guilty, (info.name, guilty)


def test_different_k_and_v_dimensions() -> None:
    made = groups(toy(head_dim={"k": 192, "v": 128}, kv_heads=4), "int8", "bf16")
    assert figures(made, 100).payload_bytes == 32 * 4 * 100 * (192 + 256)
    assert figures(made, 100).metadata_bytes == 32 * 4 * 100 * 2


def test_a_residual_by_channel_by_hand() -> None:
    """int8:channel/32 K keeps S mod 32 tokens back; V int8:token keeps none. S = 1000 = 31 x 32 + 8."""
    kv = figures(groups(toy(), "int8:channel/32", "int8"), 1000)
    per_head = 32 * 8
    assert kv.payload_bytes == per_head * (992 + 1000) * 128
    assert kv.metadata_bytes == per_head * (31 * 128 * 2 + 1000 * 2)
    assert kv.residual_bytes == per_head * 8 * 256
    assert kv.reserved_bytes == per_head * (32 - 8) * 256
    page = 128 * 128 * 2 + 4 * 128 * 2 + 128 * 2
    assert kv.allocated_bytes == per_head * (8 * page + 32 * 256)
    assert kv.padding_bytes == per_head * (8 * page - (992 + 1000) * 128 - 31 * 256 - 2000)
    assert kv.bytes_per_token.value == per_head * (128 + 256 / 32 + 130)
    assert kv.fixed_bytes_per_sequence == 0


def test_a_residual_of_the_newest_tokens_by_hand() -> None:
    """K int8:channel/32,recent=64 keeps S mod 64 = 40; V int8:group/32,asym,recent=64 keeps the last 64."""
    kv = figures(groups(toy(), "int8:channel/32,recent=64", "int8:group/32,asym,recent=64"), 1000)
    per_head = 32 * 8
    assert kv.payload_bytes == per_head * (960 + 936) * 128
    assert kv.metadata_bytes == per_head * (30 * 128 * 2 + 936 * 4 * 2 * 2)
    assert kv.residual_bytes == per_head * (40 + 64) * 256
    assert kv.reserved_bytes == per_head * 24 * 256
    assert kv.fixed_bytes_per_sequence == per_head * 64 * (256 - 128 - 16)
    short = figures(groups(toy(), "int8:channel/32,recent=64", "int8:group/32,asym,recent=64"), 30)
    assert (short.payload_bytes, short.metadata_bytes, short.residual_bytes) == (0, 0, per_head * 60 * 256)


@pytest.mark.parametrize(("context", "rows"), [(1, 1), (4095, 4095), (4096, 4096), (4097, 4096), (32768, 4096)])
def test_a_sliding_window(context: int, rows: int) -> None:
    kv = figures(groups("mistral-7b-v0.1"), context)
    assert kv.logical_bytes == 32 * 8 * rows * 512
    assert kv.bytes_per_token.numerator == 0
    assert kv.fixed_bytes_per_sequence == 512 * MIB


@pytest.mark.parametrize(("context", "window"), [(1000, 1000), (102_400, 1024)])
def test_windows_between_full_layers(context: int, window: int) -> None:
    """gemma-3-27b: 10 full and 52 sliding layers of 16 heads of 128."""
    kv = figures(groups("gemma-3-27b"), context)
    assert kv.logical_bytes == 16 * 512 * (10 * context + 52 * window)
    assert (kv.bytes_per_token.value, kv.fixed_bytes_per_sequence) == (80 * 1024, 436_207_616)


def test_shared_layers_own_nothing() -> None:
    kv = figures(groups("gemma-3n-e4b"), 32768)
    assert [(g.name, g.layers) for g in kv.by_group] == [("full", 4), ("sliding", 16)]
    assert (kv.bytes_per_token.value, kv.fixed_bytes_per_sequence) == (8192, 16 * MIB)


def test_states_by_hand() -> None:
    """qwen3-next: fp32 recurrent, bf16 convolution; a cache format does not touch them."""
    for fmt in ("bf16", "int8", "fp8_e4m3"):
        kv = figures(groups("qwen3-next-80b-a3b", fmt, fmt), 10)
        state = next(g for g in kv.by_group if g.role == "state")
        assert state.state_bytes == 36 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2) == 77_266_944
        assert state.formats == {"recurrent": "fp32", "conv": "bf16"}
        assert kv.fixed_bytes_per_sequence == 77_266_944


def test_index_keys() -> None:
    kv = figures(groups("deepseek-v3.2"), 1000)
    assert {g.role: g.payload_bytes for g in kv.by_group} == {"latent": 61 * 1000 * 1152, "index": 61 * 1000 * 256}
    small = figures(groups("deepseek-v3.2", latent="fp8_e4m3", index="fp8_e4m3:token,scale=fp32"), 1000)
    assert {g.role: g.logical_bytes for g in small.by_group} == {"latent": 61 * 1000 * 576, "index": 61 * 1000 * 132}


def test_held_is_allocated_plus_constant() -> None:
    made = groups(toy(), "int8:head", "int8:channel/32")
    kv = figures(made, 12345, 3)
    assert held_bytes(made, 12345, 3, default_page_size(made)) == kv.allocated_bytes + kv.constant_bytes
