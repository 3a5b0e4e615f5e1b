"""Prediction from captured tensors: errors by hand, the law against measured KL, kinds of evidence, bad input."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvplan.captured import SHIPPED, CaptureFile, read_capture
from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.quality.attention import attend
from kvplan.quality.law import (
    FACTOR,
    KL_OF_K,
    KL_OF_V,
    STATISTICS_KL_OF_K,
    STATISTICS_KL_OF_V,
    kl_of,
    kl_of_statistics,
)
from kvplan.quality.predict import predicted_kl, spearman
from kvplan.quality.report import QualityReport
from kvplan.quality.statistics import StatisticErrors, channel_errors
from kvplan.quality.stored import Codec, Rows, codec_layout, untouched
from kvplan.quality.tensors import TensorErrors, attend_at

REPO = Path(__file__).resolve().parents[2]
STORED = REPO / "docs" / "results" / "quality_smollm2.json"
STUDY: dict[str, list[float]] = json.loads((Path(__file__).parent / "study.json").read_text(encoding="utf-8"))["kl"]
NOT_WITHIN = {"int8:head", "int8:tensor", "mxfp8", "int4:channel", "mxfp4"}
CLIPS = "int8:channel"
"""Its loss is what another text clips, which scales from the same text cannot show."""


def row_bytes(spelling: str) -> float:
    """Bytes of a (token, KV head) of one tensor, without a residual."""
    layout = codec_layout("k", spelling, 1, 64, "bf16")
    return layout.page_bytes(layout.page_multiple) / layout.page_multiple


@pytest.fixture(scope="module")
def shipped() -> CaptureFile:
    return read_capture(SHIPPED)


@pytest.fixture(scope="module")
def report() -> QualityReport:
    return QualityReport.model_validate_json(STORED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def errors(shipped: CaptureFile, report: QualityReport) -> dict[str, tuple[float, float]]:
    made = TensorErrors(shipped)
    with torch.inference_mode():
        return {f.format: (made.error("k", f.k), made.error("v", f.v)) for f in report.formats}


def test_the_shipped_set_is_small_and_says_where_it_is_from(shipped: CaptureFile) -> None:
    assert SHIPPED.stat().st_size <= 4e6 and (SHIPPED.parent / "README.md").is_file()
    assert shipped.model == "smollm2-135m" and [x.layer for x in shipped.layers] == [0, 10, 20, 29]
    assert len(shipped.layers[0].positions) == 64 and shipped.layers[0].positions[:2] == (15, 31)


@pytest.mark.parametrize("window", [None, 40])
def test_attention_at_some_positions_is_that_of_all(shipped: CaptureFile, window: int | None) -> None:
    """Against the attention of the end-to-end run, with a residual on K and V."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, 192, 64, generator=g) for h in (9, 3, 3))
    at = tuple(range(15, 192, 16))
    rows = replace(shipped.layers[0], q=q[0][:, at, :], k=k[0], v=v[0], scale=0.125, window=window, positions=at)
    mask = torch.zeros(192, 192).masked_fill(torch.ones(192, 192, dtype=torch.bool).triu(1), -torch.inf)
    if window:
        mask = mask.masked_fill(torch.ones(192, 192, dtype=torch.bool).tril(-window), -torch.inf)
    stored = [
        Codec(role, f"int2:{where}/32,asym,recent=32", "bf16").rows(0, x)
        for role, where, x in (("k", "channel", k), ("v", "group", v))
    ]
    whole = attend(q, stored[0], stored[1], mask[None, None], 0.125)
    alone = [Rows(x.role, x.exact[0], x.decoded[0], x.layout) for x in stored]
    torch.testing.assert_close(attend_at(rows, alone[0], alone[1]), whole[0][:, at, :], rtol=1e-4, atol=1e-5)
    plain = attend(q, untouched("k", k), untouched("v", v), mask[None, None], 0.125)
    found = attend_at(rows, untouched("k", k[0]), untouched("v", v[0]))
    torch.testing.assert_close(found, plain[0][:, at, :], rtol=1e-4, atol=1e-5)


def test_the_order_is_that_of_measured_kl(report: QualityReport, errors: dict[str, tuple[float, float]]) -> None:
    """The shipped tensors: four layers of the first half of the measured text."""
    measured = {f.format: f.kl_mean for f in report.formats}
    predicted = {f: kl_of(*e) for f, e in errors.items()}
    assert spearman([predicted[f] for f in measured], list(measured.values())) >= 0.97
    medium = [f.format for f in report.formats if 60 <= row_bytes(f.k) + row_bytes(f.v) <= 96]
    assert len(medium) >= 10
    assert spearman([predicted[f] for f in medium], [measured[f] for f in medium]) >= 0.93
    off = [f for f in measured if not 1 / 1.5 < predicted[f] / measured[f] < 1.5]
    assert len(off) <= 0.1 * len(measured) and set(off) <= {CLIPS}, off


def test_on_layers_and_a_text_that_were_not_fitted(errors: dict[str, tuple[float, float]]) -> None:
    """The 26 other layers on argparse.py, against the study's KL on that text."""
    stored = json.loads((REPO / "docs" / "results" / "quality_heldout.json").read_text(encoding="utf-8"))
    other = {f: (kl_of(*e), STUDY[f][1]) for f, e in stored["errors"].items()}
    assert set(other) == set(STUDY) and "argparse" in stored["tensors"]
    assert spearman(*zip(*other.values(), strict=True)) >= 0.97
    ratios = {f: p / kl for f, (p, kl) in other.items()}
    beyond = [f for f, r in ratios.items() if not 1 / FACTOR < r < FACTOR]
    assert len(beyond) <= 0.1 * len(other), beyond
    # The 1.5 for nine of ten is not reached here: these are the ones beyond.
    assert {f for f, r in ratios.items() if not 1 / 1.5 < r < 1.5} == NOT_WITHIN
    # The shipped set ranks as these layers do.
    full = [kl_of(*stored["errors"][f]) for f in errors]
    assert spearman([kl_of(*e) for e in errors.values()], full) >= 0.97


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("fit_quality", REPO / "tools" / "fit_quality.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_constants_are_what_the_tool_finds(report: QualityReport, errors: dict[str, tuple[float, float]]) -> None:
    a, b = load_tool().fit(errors, {f.format: f.kl_mean for f in report.formats})
    assert (a, b) == pytest.approx((KL_OF_K, KL_OF_V), rel=0.01)


def test_statistics_alone(report: QualityReport, shipped: CaptureFile) -> None:
    """Order and size without running a codec, on the shipped tensors, and on other layers of another text."""
    tool = load_tool()
    with torch.inference_mode():
        found = tool.errors_of(shipped, report, StatisticErrors)
    measured = {f.format: f.kl_mean for f in report.formats}
    a, b = tool.fit(found, measured)
    assert (a, b) == pytest.approx((STATISTICS_KL_OF_K, STATISTICS_KL_OF_V), rel=0.01)
    kl = {f: kl_of_statistics(*e) for f, e in found.items()}
    assert spearman([kl[f] for f in measured], list(measured.values())) >= 0.90
    assert {f for f in measured if not 0.5 < kl[f] / measured[f] < 2} == {CLIPS}
    stored = json.loads((REPO / "docs" / "results" / "quality_heldout_statistics.json").read_text(encoding="utf-8"))
    other = [(kl_of_statistics(*e), STUDY[f][1]) for f, e in stored["errors"].items()]
    assert len(other) == len(STUDY) and spearman(*zip(*other, strict=True)) >= 0.90


def test_a_step_by_hand() -> None:
    """Uniform values of a known range: range^2 / 12 / levels^2; a float's error is a share of the value."""
    x = torch.tensor([-1.0, 1.0]).repeat(2, 32, 32)
    view = codec_layout("k", "int4:group/32,asym", 2, 64, "bf16").view("k")
    torch.testing.assert_close(channel_errors(view, x), torch.full((2, 64), (2 / 15) ** 2 / 12))
    view = codec_layout("k", "int4:channel/32,asym", 2, 64, "bf16").view("k")
    assert channel_errors(view, x).abs().max() == 0
    view = codec_layout("k", "fp8_e5m2:head", 2, 64, "bf16").view("k")
    torch.testing.assert_close(channel_errors(view, 3 * x), torch.full((2, 64), (3 * 0.053) ** 2))


def test_measured_figures_come_first(report: QualityReport, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["quality", "--predict", "--measured", str(STORED), "--json", "--kv", "kivi4", "--kv", "int3"]
    assert main([*argv, "--kv", "int4:group/32,asym / int8"]) == ExitCode.OK
    kivi, other, pair = json.loads(capsys.readouterr().out)["formats"]
    assert kivi["evidence"] == pair["evidence"] == "measured on this model"
    assert kivi["kl"] == kivi["low"] == next(f.kl_mean for f in report.formats if f.format == "kivi4")
    assert pair["kl"] == predicted_kl(report, "int4:group/32,asym", "int8")
    assert other["evidence"] == "predicted from this model's tensors" and other["error_k"] > 0.1
    assert other["low"] < other["kl"] < other["high"]


def test_another_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quality", "llama-3.1-8b", "--predict", "--kv", "int8", "--kv", "bf16"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "from another model" in out and "smollm2-135m is another model" in out and "0.00000" in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--tensors", "x.safetensors"], ExitCode.USAGE, "go with --predict"),
        (["--predict", "--calibration-tensors", str(SHIPPED)], ExitCode.INPUT, "are those that scales come from"),
        (["--predict", "--tensors", "no"], ExitCode.INPUT, "cannot read no"),
        (["--predict", "--kv", "lm3,rot"], ExitCode.UNSUPPORTED, "lm3,rot"),
        (["--predict", "--kv", "int4:group/128"], ExitCode.USAGE, "do not divide head_dim 64"),
        (["other", "--predict", "--measured", str(STORED)], ExitCode.INPUT, "is of smollm2-135m, not of other"),
        (["--predict", "--measured", "no.json"], ExitCode.INPUT, "does not exist"),
    ],
)
def test_bad_input(argv: list[str], code: ExitCode, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quality", *argv]) == code
    assert message in capsys.readouterr().err.splitlines()[0]
