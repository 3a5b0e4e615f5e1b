"""`kvplan estimate`: tables that match the plan, JSON on one stdout, and every bad input in two lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.plan import Plan, PlanRequest, make_plan


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["estimate", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_is_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "llama-3.1-8b", "--context", "32k", "--kv", "int8", "--gpu", "h200", "--json")
    assert (code, err) == (0, "")
    assert out.isascii()
    assert Plan.load(out) == make_plan(PlanRequest(model="llama-3.1-8b", context=32768, kv="int8", gpu="h200"))
    assert json.loads(out)["request"]["context"] == 32768


def test_the_table_shows_formulas_and_sizes_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "llama-3.1-8b", "--context", "32k")
    assert code == 0
    flat = " ".join(out.split())
    assert "context 32,768 tokens" in flat
    # The formula may wrap beside its size.
    assert re.search(r"32 layers x 8 kv heads x 32,768 tokens x 512 .*4.00 GiB", flat)
    assert "4,294,967,296 bytes" in flat
    for word in ("logical", "allocated", "reserved", "padding", "constant"):
        assert word in flat


def test_with_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "llama-3.1-8b", "--context", "32k", "--kv", "int8", "--gpu", "h200")
    flat = " ".join(out.split())
    assert "fixed requests: the cache goes from 4.00 GiB to 2.03 GiB (1.97x)" in flat
    assert "preallocated pool: device memory stays; requests 27 -> 54" in flat
    assert "[estimate: params.total 8,030,000,000" in flat
    assert "Not counted yet: activations" in flat


def test_not_fitting_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "llama-3.1-8b", "--context", "128k", "--gpu", "l4")
    assert (code, err) == (0, "")
    assert "does not fit" in out and "nearest change that fits: --context" in " ".join(out.split())


def test_without_a_context(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "gemma-3n-e4b")
    flat = " ".join(out.split())
    assert "8,192 bytes per token, 16,777,216 bytes fixed per sequence" in flat
    assert "32,768 272.00 MiB 272.00 MiB" in flat
    _, out, _ = run(capsys, "gemma-3n-e4b", "--gpu-memory", "24GiB", "--bandwidth", "936GB/s")
    assert "requests" in out and "custom GPU" in out


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_no_number_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = run(capsys, "qwen3-next-80b-a3b", "--context", "200000", "--kv", "int8:channel/32", "--gpu", "h200")
    assert "\x1b" not in out and "…" not in out
    assert max(map(len, out.splitlines())) <= int(width)
    if width == "80":
        plan = make_plan(PlanRequest(model="qwen3-next-80b-a3b", context=200_000, kv="int8:channel/32"))
        assert plan.kv is not None
        for number in (plan.kv.logical_bytes, plan.kv.allocated_bytes, plan.kv.reserved_bytes, plan.kv.padding_bytes):
            assert f"{number:,} bytes" in out


BAD = [
    (["lama"], ExitCode.INPUT, "lama"),
    (["llama-3.1-8b", "--kv", "int9"], ExitCode.USAGE, "int9"),
    (["llama-3.1-8b", "--kv", "int8:per_token_head"], ExitCode.USAGE, "per_token_head"),
    (["llama-3.1-8b", "--kv", "fp8_ds_mla"], ExitCode.USAGE, "for a latent"),
    (["llama-3.1-8b", "--gpu", "h9000"], ExitCode.INPUT, "h9000"),
    (["llama-3.1-8b", "--context", "0"], ExitCode.USAGE, "context"),
    (["llama-3.1-8b", "--context", "1000000000000"], ExitCode.USAGE, "out of range"),
    (["llama-3.1-8b", "--context", "10^12"], ExitCode.USAGE, "not a count"),
    (["llama-3.1-8b", "--context", "-5"], ExitCode.USAGE, "not a count"),
    (["llama-3.1-8b", "--context", "129k"], ExitCode.USAGE, "above the maximum"),
    (["llama-3.1-8b", "--batch", "1.5"], ExitCode.USAGE, "batch"),
    (["llama-3.1-8b", "--tp", "3"], ExitCode.USAGE, "tp 3"),
    (["llama-3.1-8b", "--kv", "int8:group/48"], ExitCode.USAGE, "48"),
    (["llama-3.1-8b", "--kv", "int8", "--k", "bf16"], ExitCode.USAGE, "contradict"),
    (["llama-3.1-8b", "--page-size", "100", "--kv", "int8:channel/32"], ExitCode.USAGE, "page size 100"),
    (["llama-3.1-8b", "--util", "two"], ExitCode.USAGE, "two"),
    (["llama-3.1-8b", "--util", "2"], ExitCode.USAGE, "util"),
    (["llama-3.1-8b", "--gpu-memory", "24", "--bandwidth", "936GB/s"], ExitCode.USAGE, "24"),
    (["llama-3.1-8b", "--gpu-memory", "24GiB"], ExitCode.USAGE, "bandwidth"),
    (["llama-3.1-8b", "--weights-dtype", "fp5"], ExitCode.USAGE, "fp5"),
    (["llama-3.1-8b", "--contxt", "5"], ExitCode.USAGE, "--contxt"),
    (["deepseek-v3", "--kv", "int8"], ExitCode.USAGE, "latent"),
    ([], ExitCode.USAGE, "MODEL"),
    (["a", "b"], ExitCode.USAGE, "b"),
    (["/nowhere/spec.yaml"], ExitCode.INPUT, "/nowhere/spec.yaml"),
]


@pytest.mark.parametrize(("argv", "code", "words"), BAD, ids=[" ".join(b[0]) for b in BAD])
def test_bad_input(capsys: pytest.CaptureFixture[str], argv: list[str], code: ExitCode, words: str) -> None:
    check_refusal(*run(capsys, *argv), code, words)


def check_refusal(got: int, out: str, err: str, code: ExitCode, words: str) -> None:
    lines = err.splitlines()
    assert (got, out, len(lines)) == (code, "", 2), err
    assert lines[0].startswith("error: ") and words in lines[0]
    assert lines[1].startswith("hint: ") and len(lines[1]) > 8


GOOD = """\
kvplan_spec: 1
id: mine
params: {total: 1000000}
max_context: 4096
layers: 2
native_dtype: float16
layer_groups:
  - {kind: attention, layers: 2, q_heads: 4, kv_heads: 2, head_dim: 64}
"""


def test_a_spec_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    code, out, _ = run(capsys, str(path), "--context", "1k", "--json")
    assert code == 0
    kv = json.loads(out)["kv"]
    assert kv["logical_bytes"] == 2 * 2 * 1024 * 64 * 2 * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("head_dim", "head_dmi"), "head_dmi"),
        ("", "spec.yaml"),
        ("\x00\x01\x02", "spec.yaml"),
        ("!!python/object/apply:os.system [echo]", "spec.yaml"),
        (GOOD.replace("kv_heads: 2", "kv_heads: two"), "kv_heads"),
        (GOOD.replace("layers: 2\n", "layers: [2\n", 1), "spec.yaml"),
    ],
    ids=["typo", "empty", "binary", "python tag", "text for a number", "broken yaml"],
)
def test_bad_spec_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    check_refusal(*run(capsys, str(path)), ExitCode.INPUT, words)


def test_a_folder_is_no_spec(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    check_refusal(*run(capsys, str(folder)), ExitCode.INPUT, "folder.yaml")
