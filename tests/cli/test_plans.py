"""`estimate --explain`, `layouts` and `diff` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.plan import PlanRequest, make_plan


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_explain_names_every_factor_and_its_field(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["estimate", "llama-3.1-8b", "--context", "1000", "--kv", "int8:channel/32", "--tp", "2", "--explain"]
    code, out, _ = run(capsys, *argv, "--gpu", "h200")
    assert code == 0
    flat = " ".join(out.split())
    for text in (
        "logical: 32,505,856 + 2,031,616 + 524,288 = 35,061,760 bytes",
        "32 layers <- layers 0-31 of layer group attention",
        "1 sequences <- batch",
        "4 kv heads <- kv_heads 8 / tp 2",
        "992 tokens <- context 1,000, without the residual's",
        "31 groups of 32 tokens <- 992 / 32",
        "256 bytes <- head_dim 128: k codes 128 x int8 + v codes 128 x int8",
        "8 pages of 128 tokens <- ceil(992 packed rows / page_size 128)",
        "params.total 8,030,000,000",
    ):
        assert text in flat, text


@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "gemma-3n-e4b"])
def test_the_arithmetic_of_explain_is_right(capsys: pytest.CaptureFixture[str], model: str) -> None:
    """Every `a x b = c bytes` and every `a + b = c bytes` that is printed."""
    _, out, _ = run(capsys, "estimate", model, "--context", "3000", "--pp", "2", "--batch", "3", "--explain")
    flat = " ".join(out.split())
    found = re.findall(r"((?:[\d,]+ [x+] )+[\d,]+) = ([\d,]+) bytes", flat)
    assert len(found) > 4
    for left, right in found:
        numbers = left.replace(",", "")
        assert re.fullmatch(r"[\d x+]+", numbers)
        products = [part.split(" x ") for part in numbers.split(" + ")]
        total = 0
        for factors in products:
            product = 1
            for factor in factors:
                product *= int(factor)
            total += product
        assert total == int(right.replace(",", ""))
    without = make_plan(PlanRequest(model=model, context=3000, pp=2, batch=3))
    assert without.kv is not None and f"= {without.kv.logical_bytes:,} bytes" in flat


def test_explain_of_a_row_for_all_heads(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "estimate", "llama-3.1-8b", "--context", "32", "--kv", "q8_0", "--explain")
    assert "1 kv heads <- one row for all 8 kv heads" in " ".join(out.split())


def test_explain_without_a_context(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "estimate", "llama-3.1-8b", "--kv", "int8", "--explain")
    assert "every 1 further tokens of a sequence" in " ".join(out.split())


def test_sharding_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "estimate", "gemma-3-27b", "--context", "32k", "--pp", "4", "--dp", "2", "--batch", "4")
    flat = " ".join(out.split())
    assert code == 0 and "8 GPUs; 2 sequences on the fullest of 2 replicas" in flat
    assert "stage 2: layers 15-30" in flat and "shown here" in flat
    _, out, _ = run(capsys, "estimate", "llama-3.1-70b", "--context", "32k", "--tp", "16")
    assert "copies, all 16 GPUs 10,737,418,240 bytes 10.00 GiB" in " ".join(out.split())


def test_layer_rules(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["estimate", "llama-3.1-8b", "--context", "1k", "--kv", "int8", "--layers", "first=2:bf16"]
    _, out, _ = run(capsys, *argv, "--layers", "last=2:bf16", "--json")
    data = json.loads(out)
    assert data["request"]["layers"] == ["first=2:bf16", "last=2:bf16"]
    assert [g["name"] for g in data["kv"]["by_group"]] == ["attention[0-1,30-31]", "attention[2-29]"]


def test_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "layouts", "deepseek-v3", "--gpus", "8", "--gpu", "h200", "--context", "32k", "--json")
    data = json.loads(out)
    assert code == 0 and data["schema"] == "kvplan.layouts/1"
    assert data["layouts"][0]["rank"] == 1 and data["layouts"][0]["tokens"] >= data["layouts"][-1]["tokens"]
    _, out, _ = run(capsys, "layouts", "deepseek-v3", "--gpus", "8", "--gpu", "h200", "--context", "32k")
    flat = " ".join(out.split())
    assert "layouts of 8 GPUs on NVIDIA H200" in flat and "the weights alone do not fit" in flat
    assert max(map(len, out.splitlines()[3:])) <= 80
    code, out, _ = run(capsys, "layouts", "gemma-3-27b", "--gpus", "4")
    assert code == 0 and "bytes per token and GPU" in out


def test_diff_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["diff", "llama-3.1-8b", "llama-3.1-8b", "--context", "32k", "--b", "--kv fp8_e4m3 --tp 2"]
    code, out, _ = run(capsys, *argv)
    flat = " ".join(out.split())
    assert code == 0 and "tp: 1 -> 2" in flat and "logical 4.00 GiB 1.00 GiB -3.00 GiB 0.250x" in flat
    _, out, _ = run(capsys, *argv, "--json")
    data = json.loads(out)
    assert data["schema"] == "kvplan.diff/1" and data["changed"]["tp"] == [1, 2]


def test_diff_of_stored_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = []
    for kv in ("bf16", "int8"):
        _, out, _ = run(capsys, "estimate", "llama-3.1-8b", "--context", "4k", "--kv", kv, "--json")
        paths.append(tmp_path / f"{kv}.json")
        paths[-1].write_text(out)
    code, out, _ = run(capsys, "diff", *map(str, paths))
    assert code == 0 and "0.508x" in out
    code, out, _ = run(capsys, "diff", str(paths[0]), "llama-3.1-8b", "--context", "4k", "--kv", "int8")
    assert code == 0 and "0.508x" in out
    data = json.loads(paths[0].read_text())
    data["kv"]["payload_bytes"] += 1
    paths[1].write_text(json.dumps(data))
    code, _, err = run(capsys, "diff", *map(str, paths))
    assert code == ExitCode.INPUT and "its parts give" in err


BAD = [
    (["diff", "llama-3.1-8b"], ExitCode.USAGE, "B"),
    (["diff", "lama", "llama-3.1-8b"], ExitCode.INPUT, "lama"),
    (["diff", "llama-3.1-8b", "llama-3.1-8b", "--b", "--kv 'int8"], ExitCode.USAGE, "cannot be read"),
    (["diff", "llama-3.1-8b", "llama-3.1-8b", "--b", "--foo 1"], ExitCode.USAGE, "--foo"),
    (["diff", "llama-3.1-8b", "llama-3.1-8b", "--a", "--context 1k"], ExitCode.USAGE, "context"),
    (["diff", "llama-3.1-8b", "llama-3.1-8b", "--b", "int8"], ExitCode.USAGE, "int8"),
    (["layouts", "llama-3.1-8b"], ExitCode.USAGE, "--gpus"),
    (["layouts", "llama-3.1-8b", "--gpus", "0"], ExitCode.USAGE, "gpus"),
    (["layouts", "llama-3.1-8b", "--gpus", "8", "--tp", "2"], ExitCode.USAGE, "--tp"),
    (["layouts", "llama-3.1-8b", "--gpus", "8", "--context", "1M"], ExitCode.USAGE, "above the maximum"),
    (["estimate", "llama-3.1-8b", "--layers", "40:bf16"], ExitCode.USAGE, "40"),
    (["estimate", "llama-3.1-8b", "--pp", "40"], ExitCode.USAGE, "pp 40"),
    (["estimate", "llama-3.1-8b", "--dcp", "2"], ExitCode.USAGE, "dcp 2"),
]


@pytest.mark.parametrize(("argv", "code", "words"), BAD, ids=[" ".join(b[0]) for b in BAD])
def test_bad_input(capsys: pytest.CaptureFixture[str], argv: list[str], code: ExitCode, words: str) -> None:
    got, out, err = run(capsys, *argv)
    lines = err.splitlines()
    assert (got, out, len(lines)) == (code, "", 2), err
    assert lines[0].startswith("error: ") and words in lines[0]
    assert lines[1].startswith("hint: ") and len(lines[1]) > 8
