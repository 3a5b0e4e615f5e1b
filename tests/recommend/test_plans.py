"""The configuration as a file: what recommend writes, estimate and validate take and check holds; fleets."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.recommend.types import Fleet
from kvplan.report.answers import ANSWERS

REPO = Path(__file__).resolve().parents[2]


def run(capsys: pytest.CaptureFixture[str], line: str, code: int = ExitCode.OK) -> str:
    assert main(shlex.split(line)) == code
    return capsys.readouterr().out


def write(capsys: pytest.CaptureFixture[str], path: Path, line: str) -> dict[str, Any]:
    run(capsys, f"recommend {line} --out {path}")
    made: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return made


@pytest.mark.parametrize(
    "line",
    [
        "llama-3.1-8b --gpu h200 --context 32k --concurrency 40",
        "llama-3.1-8b --gpu l4 --context 128k",
        "llama-3.1-8b --gpu h200 --context 32k --concurrency 40 --engine vllm",
        "qwen2.5-7b --gpu l4 --context 32k --concurrency 7 --engine llamacpp --max-kl 0.001",
        "qwen3-30b-a3b-2507 --gpu h200 --gpus 8 --tp 8 --context 128k --concurrency 64",
        "deepseek-v3 --gpu h200 --gpus 8 --engine vllm --context 32k --concurrency 256",
        "falcon-mamba-7b --gpu l4 --context 8k --concurrency 4",
    ],
)
def test_estimate_and_check_take_what_was_recommended(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    path = tmp_path / "plan.yaml"
    write(capsys, path, line)
    chosen = json.loads(run(capsys, f"recommend {line} --json"))["recommended"]["candidate"]
    plan = json.loads(run(capsys, f"estimate {path} --json"))
    kv, request = plan["kv"], plan["request"]
    assert kv["allocated_bytes"] + kv["constant_bytes"] == chosen["capacity"]["allocated_bytes"]
    assert plan["capacity"]["requests"] == chosen["capacity"]["requests"] and plan["verdict"]["fits"]
    assert [request[name] for name in ("k", "v", "latent")] == [chosen[name] for name in ("k", "v", "latent")]
    assert request["layers"] == chosen["layers"] and request["tp"] == chosen["layout"]["tp"]
    shown = run(capsys, f"check {path}")
    assert shown.count("ok  ") == 3 and "FAIL" not in shown


def test_an_option_on_the_command_line_goes_before_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    write(capsys, path, "llama-3.1-8b --gpu h200 --context 32k --concurrency 40")
    plan = json.loads(run(capsys, f"estimate {path} --context 4k --batch 3 --json"))
    assert (plan["request"]["context"], plan["request"]["batch"], plan["request"]["k"]) == (4096, 3, "int8")


def test_validate_takes_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from kvplan.validate import launch

    seen: list[Any] = []

    def start(request: Any, *_: Any) -> Any:
        seen.append(request)
        return iter(())

    monkeypatch.setattr(launch, "start", start)
    path = tmp_path / "plan.yaml"
    for line, formats in (
        ("qwen2.5-7b --gpu l4 --context 256 --concurrency 7 --engine llamacpp --util 0.7", None),
        ("llama-3.1-8b --gpu l4 --context 128k", "int4:channel/32,asym,recent=128 / int4:group/32,asym,recent=128"),
    ):
        write(capsys, path, line)
        main(["validate", str(path), "--device", "cpu", "--context", "256", "--batch", "2"])
        assert formats is None or seen[-1].formats == ("bf16", formats)
        assert (seen[-1].context, seen[-1].batch) == (256, 2)


@pytest.mark.parametrize(
    ("change", "red"),
    [
        ({"batch": 80}, "fits"),
        ({"k": "int2:token", "v": "int2:token"}, "quality"),
        ({"k": "fp8_e5m2"}, "quality"),
        ({"bounds": {"max_kl": 0.0001}}, "quality"),
        ({"bounds": {"min_top1": 0.999}}, "quality"),
        ({"bounds": {"max_kl": 0.02, "slo_itl_ms": 5}}, "latency"),
        ({"k": "int3:group/48"}, "formats"),
        ({"engine": "vllm", "k": "fp8", "v": "fp8", "engine_version": "9.9", "page_size": 16}, "formats"),
        ({"tp": 3}, "formats"),
    ],
)
def test_the_gate_is_red(capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any], red: str) -> None:
    path = tmp_path / "plan.yaml"
    data = write(capsys, path, "llama-3.1-8b --gpu h200 --context 32k --concurrency 40")
    path.write_text(yaml.safe_dump(data | change))
    done = json.loads(run(capsys, f"check {path} --json", ExitCode.CHECK_FAILED))
    assert not done["passed"] and [c["name"] for c in done["checks"] if not c["passed"]] == [red]
    assert done.pop("schema") == ANSWERS["check"][0]
    ANSWERS["check"][1].model_validate(done)


def test_evidence_changes_the_gate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    report = REPO / "docs" / "results" / "quality_smollm2.json"
    write(capsys, path, "smollm2-135m --gpu l4 --context 8k --concurrency 4")
    text = path.read_text().replace("k: bf16\nv: bf16", "k: kivi4\nv: kivi4") + "  at_worst: true\n"
    path.write_text(text.replace("kivi4", "int8:group/32").replace("max_kl: 0.02", "max_kl: 0.0004"))
    assert "measured on this model" in run(capsys, f"check {path} --evidence {report}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kvplan_plan: 1\nmodel: llama-3.1-8b\n", "names no gpu"),
        ("kvplan_plan: 2\nmodel: llama-3.1-8b\n", "version 2"),
        ("kvplan_plan: 1\nmodel: llama-3.1-8b\ncontxt: 8\n", "did you mean context"),
        ("kvplan_plan: 1\nmodel: llama-3.1-8b\ngpu: h200\ncontext: many\n", "context"),
        ("kvplan_plan: 1\nmodel: llama-3.1-8b\ngpu: h200\ncontext: 4096\nbounds: {kl: 1}\n", "bounds are"),
        ("kvplan_plan: 1\nmodel: llama-3.1-8b\ngpu: h200\ncontext: 4096\nbounds: {max_kl: few}\n", "no number"),
        ("kvplan_plan: 1\nmodel: no-such\ngpu: h200\ncontext: 4096\n", "no-such"),
        ("a: 1\n", "no key kvplan_plan"),
        ("a: [\n", "no YAML"),
    ],
)
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert main(["check", str(path)]) == ExitCode.INPUT
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"] and words in " ".join(lines)
    assert main(["check", str(tmp_path / "none.yaml")]) == ExitCode.INPUT


def test_a_fleet_is_ranked_by_requests_per_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    line = "recommend llama-3.1-8b --gpu l4,h200,h100-80gb --context 32k --concurrency 24"
    fleet = Fleet.model_validate_json(run(capsys, f"{line} --json"))
    assert [row.gpu for row in fleet.rows] == ["h200", "h100-80gb", "l4"]
    assert fleet.rows[-1].recommendation.recommended is None and fleet.rows[-1].recommendation.relax
    for row in fleet.rows:
        choice = row.recommendation.recommended or row.recommendation.runner_up
        assert choice and row.requests == row.requests_per_gpu == choice.candidate.capacity.requests
        assert row.price_per_hour is None and row.requests_per_price is None
    shown = run(capsys, line)
    assert "ranked by requests per GPU" in shown and "price an hour" not in shown and "kvplan knows none" in shown


def test_prices_are_the_user_s(capsys: pytest.CaptureFixture[str]) -> None:
    line = "recommend llama-3.1-8b --gpu h200,h100-80gb --context 32k --concurrency 24 --price h200=9"
    some = json.loads(run(capsys, f"{line} --json"))
    assert some["ranked_by"] == "requests per GPU" and some["rows"][0]["gpu"] == "h200"
    both = json.loads(run(capsys, f"{line} --price h100-80gb=1.5 --json"))
    first, second = both["rows"]
    assert both["ranked_by"] == "requests per price" and first["gpu"] == "h100-80gb"
    assert first["requests_per_price"] == pytest.approx(first["requests_per_gpu"] / 1.5)
    assert first["requests_per_price"] > second["requests_per_price"]


@pytest.mark.parametrize(
    ("driver", "memory", "device"),
    [
        ("NVIDIA H200", "143771 MiB", "h200"),
        ("NVIDIA L4", "23034 MiB", "l4"),
        ("NVIDIA A100-SXM4-80GB", "81920 MiB", "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", "24564 MiB", "rtx-4090"),
        ("NVIDIA H100 PCIe", "81559 MiB", None),
        (None, "", None),
    ],
)
def test_this_machine_s_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, driver: str | None, memory: str, device: str
) -> None:
    from kvplan.cli import examine

    found = [{"name": driver, "driver": "1", "memory": memory}] if driver else []
    monkeypatch.setattr(examine, "_gpus", lambda: found)
    argv = ["recommend", "smollm2-135m", "--gpu", "auto", "--context", "1k", "--json"]
    assert main(argv) == (ExitCode.OK if device else ExitCode.NO_DEVICE)
    out, err = capsys.readouterr()
    if device:
        assert json.loads(out)["device"]["id"] == device
    else:
        assert "--gpu auto" in err and "hint: " in err
