"""The codecs on real K and V: figures computed elsewhere, and the order of formats by what attention loses."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path

import pytest
import torch
from kvplan_kernels.attention.reference import format_error
from kvplan_kernels.codecs.grid import calibrate, decode, encode
from kvplan_kernels.testing import layout_of

from kvplan.formats.grammar import Pair, parse_kv
from kvplan.formats.layout import Layout
from kvplan.quality.predict import spearman

LAYERS = (0, 1, 10, 20, 29)
# 64 query positions evenly over the last 512 of 1024.
POSITIONS = torch.linspace(512, 1023, 64).round().long()

# (relative error of K, of V, mean output error), computed independently of this project.
REAL = {
    "int8": (0.0104, 0.0083, 0.0150),
    "int8:group/32": (0.0082, 0.0069, 0.0109),
    "int4:group/32,asym": (0.0986, 0.0891, 0.1303),
    "int4:group/64,asym": (0.1266, 0.1104, 0.1840),
    "int2:group/32,asym": (0.5014, 0.4511, 0.8486),
}
# Mean over all layers of the same model, on other text: they show that a format behaves as it did elsewhere.
ELSEWHERE = {
    "nvfp4": (0.0922, 0.0934), "mxfp4": (0.1368, 0.1218), "mxfp8": (0.0322, 0.0307),
    "int4:token,asym,rot": (0.0862, 0.0887), "int4,rot": (0.1018, 0.1063), "int3:token,asym,rot": (0.1849, 0.1902),
    "int2:group/32,asym,rot": (0.3786, 0.3900),
}  # fmt: skip


# Mean attention-output error of whole formats in an independent study: all 30 layers, other text (facts/quality.md
# section 5). Named by what they are here; pairs are K and V.
STUDY = {
    "bf16": 0.0040, "int8:group/32": 0.0115, "int8": 0.0161, "int8:head": 0.0432, "int8:tensor": 0.0486,
    "fp8_e4m3:token": 0.0448, "fp8_e4m3": 0.0633, "fp8_e4m3:head": 0.0641, "mxfp8": 0.0869, "int8:channel": 0.0699,
    "fp8_e5m2": 0.1285, "kivi4": 0.0472, "kivi4,recent=32": 0.0557, "kivi4/64": 0.0579, "int4:group/32,asym": 0.1390,
    "int4:token,asym,rot": 0.1353, "int4,rot": 0.1615, "nvfp4": 0.1829, "int4:group/64,asym": 0.2040,
    "int4:group/32": 0.2150, "int4:channel": 0.3930, "kivi2": 0.2846, "mxfp4": 0.3440, "int3:token,asym,rot": 0.3138,
    "kivi2,recent=32": 0.3356, "int4": 0.3225, "kivi2/64": 0.3726, "int2:group/32,asym,rot": 0.7685,
    "int2:group/32,asym": 0.9626, "int8 int4:group/64,asym": 0.0724, "int8:group/32 int2:group/32,asym": 0.3034,
}  # fmt: skip


@cache
def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    assert {x["dtype"] for x in header.values()} == {"F16"}
    data = torch.frombuffer(bytearray(raw[start:]), dtype=torch.float16)
    return {n: data[x["data_offsets"][0] // 2 : x["data_offsets"][1] // 2].view(x["shape"]) for n, x in header.items()}


@pytest.fixture
def tensors(shared: Path) -> dict[str, torch.Tensor]:
    return read_safetensors(shared / "data" / "smollm2_kv_small.safetensors")


def layout_of_kv(spelling: str) -> Layout:
    """Layout of a pair name, of `K V`, or of one format for both; three KV heads of 64 channels."""
    if " " in spelling:
        return layout_of(*spelling.split(), heads=3)
    parsed = parse_kv(spelling)
    pair = (parsed.k.spelling, parsed.v.spelling) if isinstance(parsed, Pair) else (spelling, spelling)
    return layout_of(*pair, heads=3)


def measure(spelling: str, tensors: dict[str, torch.Tensor]) -> list[float]:
    """(relative error of K, of V, output error), mean over layers; the newest rows wait where the format says so."""
    layout = layout_of_kv(spelling)
    found = []
    for layer in LAYERS:
        q, *kv = (tensors[f"layers.{layer}.{name}"] for name in "qkv")
        hats, lost = [], []
        for role, x in zip("kv", kv, strict=True):
            packed = decode(layout, role, encode(layout, role, x, calibrate(layout, role, x) or None))
            lost.append(float((packed - x).norm() / x.float().norm()))
            split = layout.tensor(role).split
            at = torch.arange(x.shape[1])
            hats.append(
                lambda b, x=x, packed=packed, split=split, at=at: torch.where(
                    (at < split(int(POSITIONS[b]) + 1)[0])[:, None], packed, x.to(packed.dtype)
                )
            )
        k, v = (lambda _, x=x: x for x in kv)
        rows = q[:, POSITIONS - 512].transpose(0, 1)
        error = format_error(rows, k, v, *hats, lengths=POSITIONS + 1, sm_scale=0.125)
        found.append([*lost, error.both.output.mean])
    return torch.tensor(found).mean(0).tolist()


@pytest.mark.parametrize("spelling", REAL)
def test_errors_on_real_k_and_v_agree_with_independent_figures(spelling: str, tensors: dict[str, torch.Tensor]) -> None:
    assert measure(spelling, tensors) == pytest.approx(REAL[spelling], rel=0.03)


@pytest.mark.parametrize("spelling", ELSEWHERE)
def test_block_floats_and_rotated_formats_lose_what_they_lost_elsewhere(
    spelling: str, tensors: dict[str, torch.Tensor]
) -> None:
    assert measure(spelling, tensors)[:2] == pytest.approx(ELSEWHERE[spelling], rel=0.1)


def test_formats_are_ordered_by_output_error_as_in_the_study(tensors: dict[str, torch.Tensor]) -> None:
    """Five layers and another text instead of thirty: the order of all formats that both know is the same."""
    found = [measure(spelling, tensors)[2] for spelling in STUDY]
    assert spearman(found, list(STUDY.values())) >= 0.97, dict(zip(STUDY, found, strict=True))
