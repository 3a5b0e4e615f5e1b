"""Help with examples, completion, schemas, doctor, defaults, near names, no colour and no noise in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kvplan.cli import defaults, examine
from kvplan.cli.main import COMMANDS, cli, exit_codes, main
from kvplan.errors import ExitCode
from kvplan.report.schema import result_schema
from kvplan.report.stored import KINDS

ROOT = Path(__file__).parents[2]
VALIDATION = ROOT / "docs/results/validate_llama-3.1-8b_32k_x16_h200.json"
QUALITY = ROOT / "docs/results/quality_smollm2_tasks.json"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of defaults that is not there, and no variables."""
    for name in defaults.NAMES:
        monkeypatch.delenv(f"KVPLAN_{name.upper()}", raising=False)
    path = tmp_path / "config.toml"
    monkeypatch.setenv("KVPLAN_CONFIG", str(path))
    return path


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def plan(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(out(capsys, "estimate", "llama-3.1-8b", "--context", "4k", "--json", *more))
    return made


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = out(capsys, name, "--help")
    examples = text.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    assert examples and all(f"kvplan {name}" in line or "kvplan estimate" in line for line in examples)
    assert all(len(line) <= 100 for line in examples)
    assert exit_codes() in " ".join(text.split())


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield name, command


def test_every_option_has_help() -> None:
    for name, command in commands():
        for option in command.params:
            assert isinstance(option, click.Argument) or getattr(option, "help", None), (name, option.name)


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["estimate", "llama-3.1-8b", "--contxt", "4k"], "--context"),
        (["recommend", "llama-3.1-8b", "--concurency", "4"], "--concurrency"),
        (["report", "x", "--htlm"], "--html"),
        (["schema", "plans"], "plan"),
        (["completion", "bsh"], "bash"),
        (["doctr"], "doctor"),
    ],
)
def test_near_names(capsys: pytest.CaptureFixture[str], argv: list[str], near: str) -> None:
    assert main(argv) == ExitCode.USAGE
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and f"did you mean {near}" in hint


# Completion


def complete(words: str) -> list[str]:
    """What a shell is offered at the end of a line."""
    environment = {**os.environ, "_KVPLAN_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    done = subprocess.run(
        [sys.executable, "-m", "kvplan"], env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return [line.split(",", 1)[1] for line in done.stdout.splitlines()]


def test_completion_of_names() -> None:
    assert complete("kvplan re") == ["recommend", "reconcile", "report"]
    assert "llama-3.1-8b" in complete("kvplan estimate llama-3.1")
    assert complete("kvplan estimate x --gpu h2") == ["h200"]
    assert "fp8_e5m2" in complete("kvplan estimate x --engine vllm --kv fp8")
    assert "--context" in complete("kvplan estimate x --con")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    text = out(capsys, "completion", shell)
    assert "_KVPLAN_COMPLETE" in text and f"{shell}_complete" in text


# Schemas


def faults(schema: dict[str, Any], value: Any, root: dict[str, Any], where: str = "$") -> list[str]:
    """Where a value breaks a schema; the few words of the standard that these schemas use."""
    if "$ref" in schema:
        return faults(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, root, where)
    if "anyOf" in schema:
        tried = [faults(each, value, root, where) for each in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "const" in schema:
        return [] if value == schema["const"] else [where]
    if "enum" in schema:
        return [] if value in schema["enum"] else [where]
    kinds = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
        "null": type(None),
    }  # fmt: skip
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (kind in ("integer", "number") and isinstance(value, bool))):
        return [f"{where}: {value!r} is no {kind}"]
    found = []
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            if name not in known and other is False:
                found.append(f"{where}: {name} is not in the schema")
            inner = known.get(name, other if isinstance(other, dict) else {})
            found += faults(inner, each, root, f"{where}.{name}")
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, each in enumerate(value):
            found += faults(schema["items"], each, root, f"{where}[{i}]")
    return found


RESULTS = {
    "plan": "estimate llama-3.1-8b --context 32k --batch 64 --gpu h200 --engine vllm --lengths p50=2k,p95=16k",
    "recommendation": "recommend llama-3.1-8b --gpu h200 --concurrency 60 --context 32k",
    "diff": "diff llama-3.1-8b llama-3.1-8b --context 4k --b=--kv=int8",
    "layouts": "layouts llama-3.1-8b --gpus 4 --gpu h200",
    "solution": "solve llama-3.1-8b --gpu h200 --context 32k",
    "specs": "specs list",
    "engines": "engines",
    "doctor": "doctor",
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_obey_their_schema(capsys: pytest.CaptureFixture[str], name: str) -> None:
    schema = json.loads(out(capsys, "schema", name))
    value = json.loads(out(capsys, *RESULTS[name].split(), "--json"))
    assert faults(schema, value, schema) == []
    assert faults(schema, {**value, "more": 1}, schema) or name not in ("plan", "recommendation")
    value.pop("schema")
    assert faults(schema, value, schema)


def test_a_plan_without_a_context_obeys_too(capsys: pytest.CaptureFixture[str]) -> None:
    schema = result_schema("plan")
    assert faults(schema, json.loads(out(capsys, "estimate", "gemma-3-4b", "--json")), schema) == []
    assert schema["$defs"]["PlanRequest"]["properties"]["tp"]["description"].startswith("Tensor-parallel")
    assert schema["$defs"]["Breakdown"]["properties"]["constant"]["$ref"] == "#/$defs/Tree"


@pytest.mark.parametrize(("name", "file"), [("validation", VALIDATION), ("quality", QUALITY)])
def test_stored_results_obey(capsys: pytest.CaptureFixture[str], name: str, file: Path) -> None:
    schema = result_schema(name)
    assert faults(schema, json.loads(file.read_text()), schema) == []
    assert "int8" in out(capsys, "show", str(file))


def test_every_kind_has_a_schema() -> None:
    for name, kind in KINDS.items():
        schema = result_schema(name)
        assert schema["$id"] == kind.schema and schema["properties"]["schema"] == {"const": kind.schema}
    assert main(["schema"]) == ExitCode.USAGE


# Defaults


def test_defaults_from_the_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_GPU", "h200")
    monkeypatch.setenv("KVPLAN_ENGINE", "vllm")
    made = plan(capsys)
    assert made["device"]["id"] == "h200" and made["engine"]["name"] == "vllm"
    made = plan(capsys, "--gpu", "l4", "--engine", "none")
    assert made["device"]["id"] == "l4" and made["engine"] is None
    assert plan(capsys, "--gpu", "none", "--engine", "none")["device"] is None
    made = plan(capsys, "--engine", "none", "--gpu-memory", "24GiB", "--bandwidth", "936GB/s")
    assert made["device"]["memory_bytes"] == 24 * 2**30
    assert "h200" in out(capsys, "recommend", "llama-3.1-8b", "--json", "--context", "4k")
    assert json.loads(out(capsys, "layouts", "llama-3.1-8b", "--gpus", "2", "--json"))["device"]["id"] == "h200"


def test_defaults_from_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    config.write_text('gpu = "l4"\nutil = 0.5\n')
    made = plan(capsys)
    assert made["device"]["id"] == "l4" and made["request"]["util"] == 0.5
    monkeypatch.setenv("KVPLAN_GPU", "h200")
    assert plan(capsys)["device"]["id"] == "h200"
    # A comparison says itself what it is of.
    assert "capacity" not in out(capsys, "diff", "llama-3.1-8b", "llama-3.1-8b", "--b=--kv=int8")


@pytest.mark.parametrize("text", ['gpo = "l4"', "gpu = ", "gpu = true", "gpu = ['a']"])
def test_a_broken_file(capsys: pytest.CaptureFixture[str], config: Path, text: str) -> None:
    config.write_text(text)
    assert main(["estimate", "llama-3.1-8b"]) == ExitCode.INPUT
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and ("config.toml" in hint or "did you mean gpu" in hint)
    assert "unusable" in out(capsys, "doctor")
    assert main(["specs", "show", "llama-3.1-8b"]) == 0


def test_a_wrong_default_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_GPU", "h2000")
    assert main(["estimate", "llama-3.1-8b"]) == ExitCode.INPUT


# Doctor


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("KVPLAN_ENGINE", "vllm")
    config.write_text('gpu = "l4"\n')
    text = out(capsys, "doctor")
    assert "engine vllm from KVPLAN_ENGINE" in text and f"gpu l4 from {config}" in text and "pydantic" in text
    found = json.loads(out(capsys, "doctor", "--json"))
    assert found["schema"] == "kvplan.doctor/1" and found["defaults"]["found"]


def test_doctor_says_what_can_be_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    card = [{"name": "A", "driver": "1", "memory": "2"}]
    none: dict[str, str | None] = {"torch": None, "triton": None, "numpy": None}
    both: dict[str, str | None] = {"torch": "2", "triton": "3", "numpy": "2"}
    assert "numpy not installed" in examine._validate({**both, "numpy": None}, [])
    assert "times" in examine._validate({**both, "numpy": None}, card)
    assert "not installed" in examine._validate(none, card)
    assert "--device cpu" in examine._validate(both, [])
    assert "times" in examine._validate(both, card)
    monkeypatch.setattr(examine, "QUERY", (sys.executable, "-c", "print('NVIDIA H200, 570.1, 143771 MiB')"))
    assert examine._gpus() == [{"name": "NVIDIA H200", "driver": "570.1", "memory": "143771 MiB"}]
    monkeypatch.setattr(examine, "QUERY", ("no-such-program",))
    assert examine._gpus() == []


# Pipes


@pytest.mark.parametrize("argv", [["estimate", "llama-3.1-8b"], ["doctor"], ["specs", "list"], ["engines"]])
def test_a_pipe_gets_text_alone(argv: list[str]) -> None:
    for environment in ({}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}):
        done = subprocess.run(
            [sys.executable, "-m", "kvplan", *argv],
            env={**os.environ, **environment}, capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        # Where colour is forced, NO_COLOR leaves bold at most.
        colours = [f"\x1b[{n}m" for n in range(30, 38)]
        assert done.stderr == "" and not any(c in done.stdout for c in colours)
        assert environment or "\x1b" not in done.stdout


def test_the_full_screen_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui"]) == ExitCode.USAGE
    assert "kvplan estimate" in capsys.readouterr().err
