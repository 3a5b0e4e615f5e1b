"""Each printed figure is kvplan's own, within the rounding; differences have a residual and a cause."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode, InputError, UsageError
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.calibration import read_calibration
from kvplan.reconcile.calibration import calibration
from kvplan.reconcile.explain import explain
from kvplan.reconcile.explained.common import covered
from kvplan.reconcile.result import Reconciliation
from kvplan.reconcile.run import read_log, to_json
from kvplan.reconcile.summary import summary

_spec = importlib.util.spec_from_file_location("written_logs_2", Path(__file__).with_name("written.py"))
assert _spec and _spec.loader
written = importlib.util.module_from_spec(_spec)
sys.modules["written_logs_2"] = written
_spec.loader.exec_module(written)

MODELS = {
    "trtllm: dynamo": "llama-3.1-8b", "trtllm: kimi fp8": "kimi-k2.5", "trtllm: qwen3 bf16": "qwen3-8b",
    "trtllm: qwen3 fp8": "qwen3-8b", "trtllm: 2023": "llama-2-7b",
    # 62.99 GiB / 294,848 tokens = 229,376 bytes = 56 layers x 8 heads x 256 x 2
    "trtllm: h100": "mixtral-8x22b",
    # MHA of 32 layers and 32 heads of 128, as InternLM-7B has
    "lmdeploy: internlm": "llama-2-7b", "lmdeploy: internlm quarter": "llama-2-7b",
    "lmdeploy: internvl": "llama-3.1-8b", "lmdeploy: gpt-oss int4": "gpt-oss-20b", "lmdeploy: pytorch": "llama-3.1-8b",
    "lmdeploy: object cache": "llama-3.1-8b", "sglang: states": "qwen3.6-27b", "llamacpp: 2023": "llama-2-13b",
}  # fmt: skip
"""Log to the model that it is of, where the log does not name one that ships."""
SUPPOSED = {"trtllm: kimi fp8": "fp8", "trtllm: qwen3 fp8": "fp8", "llamacpp: windows": "256"}
"""Logs that leave something open, and what must be supposed."""
UNKNOWN = {"llamacpp: 2025-02", "ollama: smollm2", "ollama: one device", "ollama: two devices"}
"""Models that do not ship."""
LOGS = [w for w in written.ALL if f"{w.engine}: {w.name}" not in UNKNOWN]


def found_in(text: str, tmp_path: Path, model: str | None = None, gpu: str | None = None) -> Reconciliation:
    path = tmp_path / "server.log"
    path.write_text(text)
    return explain(read_log(path), model, gpu)


def text_of(engine: str, name: str) -> str:
    return "\n".join(written.lines_of(next(w for w in written.ALL if (w.engine, w.name) == (engine, name))))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.engine}: {log.name}")
def test_every_figure_agrees(log: written.Written, tmp_path: Path) -> None:
    key = f"{log.engine}: {log.name}"
    found = found_in("\n".join(written.lines_of(log)), tmp_path, MODELS.get(key))
    assert found.compared
    assert [(c.printed.name, c.printed.value, c.low, c.high) for c in found.compared if not c.agrees] == []
    assert all(c.residual == 0 and c.formula for c in found.compared)
    assert (key in SUPPOSED) == bool(found.causes)
    for cause in found.causes:
        assert SUPPOSED[key] in cause
    body = json.loads(to_json(found))
    assert body["schema"] == "kvplan.reconciliation/1" and body["agrees"]


def test_by_hand(tmp_path: Path) -> None:
    """Llama 3.1 8B in SGLang: (327,680 + 1) tokens x 32 layers x 8 heads x 128 x 2 bytes."""
    found = found_in(text_of("sglang", "llama"), tmp_path)
    k = next(c for c in found.compared if c.printed.name == "k")
    assert k.low * 2**30 == (327680 + 1) * 32 * 8 * 128 * 2
    # 78.58 GiB free before loading, less 15.20 + 20.00 + 20.00 + 22.34; five roundings of 0.005 GiB
    assert found.beside is not None
    assert abs(found.beside.low_bytes - (Decimal("1.04") - Decimal("0.025")) * 2**30) <= 5
    assert abs(found.beside.high_bytes - (Decimal("1.04") + Decimal("0.025")) * 2**30) <= 5


def test_residual_and_factor(tmp_path: Path) -> None:
    """Another model's log: the residual is printed less computed, and the one factor is named."""
    found = found_in(text_of("sglang", "llama"), tmp_path, "qwen3-8b")
    k = next(c for c in found.compared if c.printed.name == "k")
    assert not found.agrees and k.residual == k.printed.value - k.high
    # 32 layers instead of 36
    assert any("0.889" in cause for cause in found.causes)


def test_blocks_behind_the_tokens(tmp_path: Path) -> None:
    """C.llama31_8b.auto.b16.tp2: 901,120 tokens are 56,320 blocks of 16, each 16 x 4 heads x 256 x 2 x 32 bytes."""
    found = found_in(text_of("vllm", "llama tp2"), tmp_path)
    assert dict(found.derived)["num_gpu_blocks"] == 56320
    assert dict(found.derived)["bytes per block"] == 16 * 4 * 256 * 2 * 32


def test_residual_of_the_old_engine(tmp_path: Path) -> None:
    """V01: 21.22 - 14.99 - 3.81 = 2.42 GiB; the log itself says 2.07 activation and 0.35 outside PyTorch."""
    found = found_in(text_of("vllm", "V0"), tmp_path).beside
    assert found is not None and found.low_bytes <= int(2.42 * 2**30) <= found.high_bytes
    assert found.high_bytes - found.low_bytes <= 0.03 * 2**30 + 3


def test_residual_with_a_gpu(tmp_path: Path) -> None:
    """Share of the GPU, less weights and cache."""
    text = text_of("vllm", "qwen 0.11").replace("'max_model_len'", "'gpu_memory_utilization': 0.6, 'max_model_len'")
    found = found_in(text, tmp_path, gpu="h100-80gb").beside
    assert found is not None and found.memory_bytes is not None
    exact = 0.6 * found.memory_bytes - (14.9888 + 5.03) * 2**30
    assert found.low_bytes <= exact <= found.high_bytes


def test_another_rank_decides(tmp_path: Path) -> None:
    """The tokens are those of a rank whose line is missing (as in V19)."""
    text = text_of("vllm", "llama tp2").replace("55.00 GiB", "56.00 GiB")
    found = found_in(text, tmp_path)
    assert not found.agrees and "another rank" in found.causes[0].lower() and "55.00 GiB" in found.causes[0]


def log_of(record: dict[str, Any]) -> str:
    """The lines that a record of a public log was taken from."""
    printed, length = record["printed"], record["max_model_len"]
    number = re.match(r"v?(0\.\d+(?:\.\d+)?)", record["engine_version"] or "")
    version = f" (v{number[1]})" if number else ""
    kv = record["kv_dtype"] if "auto" not in (record["kv_dtype"] or "auto") else "auto"
    lines = [
        f"Initializing a V1 LLM engine{version} with config: model='{record['model'].split(' (')[0]}', "
        f"max_seq_len={length}, tensor_parallel_size={record['tp'] or 1}, kv_cache_dtype={kv}, "
        f"decode_context_parallel_size={record['dcp'] or 1}"
    ]
    pool = printed.get("avail_gib", printed.get("kv_cache_gib"))
    if "need_gib" in printed:
        lines.append(f"max seq len ({length}), ({printed['need_gib']} GiB KV cache is needed, which is larger than "
                     f"the available KV cache memory ({pool} GiB).")  # fmt: skip
        if "est_len" in printed:
            lines.append(f"the estimated maximum model length is {printed['est_len']}.")
    elif isinstance(pool, int | float):
        lines.append(f"Available KV cache memory: {pool} GiB")
    shapes = {"tokens": "GPU KV cache size: {:,} tokens", "gpu_blocks": "# GPU blocks: {}",
              "concurrency": f"Maximum concurrency for {length} tokens per request: {{}}x"}  # fmt: skip
    return "\n".join([*lines, *(text.format(printed[k]) for k, text in shapes.items() if k in printed)])


def test_public_logs_of_vllm(shared: Path, tmp_path: Path) -> None:
    """Figures of public logs whose model ships: all are kvplan's own, but one whose deciding rank is not quoted."""
    records = json.loads((shared / "data/engine_logs.json").read_text())["records"]
    told, other_rank = 0, set()
    for record in records:
        text = log_of(record) if record["engine"] == "vLLM" and record["evidence_strength"] == "independent" else ""
        if "KV cache" not in text and "GPU blocks" not in text:
            continue
        found = found_in(text, tmp_path)
        if found.compared and "another rank" in " ".join(found.causes).lower():
            other_rank.add(record["id"])
        elif found.compared:
            assert found.agrees, (record["id"], found.causes)
            told += 1
    assert told >= 5 and other_rank <= {"V19"}


def test_models_of_logs(tmp_path: Path) -> None:
    """By a header that the log repeats, by its dimensions, by its name however the weights are quantised."""
    line = ("llama_kv_cache: size = {0} MiB (  4096 cells,  32 layers,  1/1 seqs), K (f16): {1} MiB, V (f16): {1} MiB"
            ).format("512.00", "256.00")  # fmt: skip
    header = {"block_count": 32, "context_length": 8192, "embedding_length": 4096, "attention.head_count": 32,
              "attention.head_count_kv": 8}  # fmt: skip
    dump = ["llama_model_loader: - kv   0: general.architecture str = llama",
            *(f"llama_model_loader: - kv   1: llama.{key} u32 = {value}" for key, value in header.items())]  # fmt: skip
    found = found_in("\n".join([*dump, line]), tmp_path)
    assert found.agrees and "header" in found.model_from
    info = ["arch = llama", "n_ctx_train = 8192", "n_embd = 4096", "n_layer = 32", "n_head = 32", "n_head_kv = 8",
            "n_embd_head_k = 128", "n_embd_head_v = 128"]  # fmt: skip
    found = found_in("\n".join([*(f"print_info: {text}" for text in info), line]), tmp_path)
    assert found.agrees and "dimensions" in found.model_from
    for name in ("Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Meta-Llama-3.1-8B-Instruct-UD-Q4_K_XL.gguf"):
        named = f"llama_model_loader: loaded meta data with 9 tensors from /m/{name} (version GGUF V3)\n{line}"
        assert found_in(named, tmp_path).model == "llama-3.1-8b"


def test_unknown_models(tmp_path: Path) -> None:
    """Without a model the log is still read; a file beside the user is not opened because a log has its name."""
    line = "llama_kv_cache: size = 8.00 MiB ( 256 cells, 32 layers, 1/1 seqs), K (f16): 4.00 MiB, V (f16): 4.00 MiB"
    found = found_in(line, tmp_path)
    assert not found.compared and "does not name its model" in found.model_from
    assert (found.summary.low_bytes, found.summary.high_bytes) == (8 * 2**20 - 2 * 5242, 8 * 2**20 + 2 * 5242)
    (tmp_path / "config.json").write_text("{}")
    named = f"llama_model_loader: loaded meta data with 9 tensors from /m/config.json (version GGUF V3)\n{line}"
    assert "'config.json' is not known" in found_in(named, tmp_path).model_from
    with pytest.raises(InputError):
        found_in(line, tmp_path, "no-such-model")


SUMMARIES = {
    "vllm: llama tp2": (55 * 2**30, 901120, None), "vllm: V0": (3.81 * 2**30, None, 1952),
    "vllm: refused": (8 * 2**30, None, None), "sglang: llama": (40 * 2**30, 327680, None),
    "sglang: states": ((10.08 + 10.08 + 0.34 + 17.58) * 2**30, 330323, None),
    "sglang: windows": ((8.38 + 5.59 + 1.21 + 0.81) * 2**30, 375360, None),
    "llamacpp: states": (4425 * 2**20, None, None), "llamacpp: windows": (480 * 2**20, None, None),
    "llamacpp: 2023": (400 * 2**20, None, None), "trtllm: kimi fp8": (166.02 * 2**30, 5073376, 158543),
    "trtllm: 2023": (69524783104, 132608, None), "lmdeploy: internvl": (8 * 2**20 * 6214, None, 6214),
    "lmdeploy: gpt-oss int4": (884736 * 1740, 111360, 1740), "ollama: llama 3.2": (448 * 2**20, None, None),
    "ollama: two devices": (3.0 * 2**30, None, None),
}  # fmt: skip


@pytest.mark.parametrize("key", SUMMARIES)
def test_summary(key: str, tmp_path: Path) -> None:
    """Bytes within the rounding, tokens and blocks as printed."""
    path = tmp_path / "server.log"
    path.write_text(text_of(*key.split(": ")))
    found, (nbytes, tokens, blocks) = summary(read_log(path)), SUMMARIES[key]
    assert found.low_bytes is not None and found.high_bytes is not None
    assert found.low_bytes - 1 <= nbytes <= found.high_bytes + 1
    assert (found.tokens, found.blocks) == (tokens, blocks)


def test_every_golden_log_gives_its_bytes(shared: Path, tmp_path: Path) -> None:
    """The log alone, without a model."""
    records = json.loads((shared / "data/llamacpp_golden.json").read_text())["records"]
    for record in (r for r in records if r["ok"]):
        found = found_in("\n".join(record["log"]), tmp_path).summary
        assert found.low_bytes is not None and found.high_bytes is not None
        assert found.low_bytes <= record["total_bytes"] <= found.high_bytes, record["model"]


def test_refused_by_kvplan(tmp_path: Path) -> None:
    """A log that kvplan's engine refuses is read all the same, with the reason."""
    text = text_of("sglang", "llama").replace("tp_size=1", "tp_size=7")
    found = found_in(text, tmp_path)
    assert not found.compared and "kvplan refuses" in found.why_not and found.summary.tokens == 327680
    assert json.loads(to_json(found))["agrees"] is None


def test_versions() -> None:
    """The newest covered version that is not newer."""
    from kvplan.engines import load_engine

    engine = load_engine("lmdeploy-turbomind")
    assert [covered(engine, v) for v in ("0.16.0", "0.10.2", "0.9.1", "0.0.1", None)] == [
        "0.16.0", "0.10.0", "0.7.0", "0.0.14", None,
    ]  # fmt: skip


def test_calibration_is_read_by_estimates(tmp_path: Path) -> None:
    """What a log measured is what a plan with --calibration takes beside weights and cache."""
    log, file = tmp_path / "s.log", tmp_path / "measured.json"
    log.write_text(text_of("sglang", "llama"))
    assert main(["reconcile", str(log), "--gpu", "h100-80gb", "--save", str(file)]) == 0
    data = read_calibration(file)
    assert data["engine"] == "sglang" and data["model"] == "llama-3.1-8b"
    assert 0 <= data["residual_low_bytes"] <= data["residual_high_bytes"]
    assert str(tmp_path) not in file.read_text() and "10.1.2.3" not in file.read_text()
    request = PlanRequest(model="llama-3.1-8b", engine="sglang", gpu="h100-80gb", context=8192, calibration=str(file))
    plan = make_plan(request)
    assert plan.capacity is not None and plan.capacity.budget is not None
    measured = [n for n in plan.capacity.budget.needs if n.basis == "measured"]
    assert [n.high_bytes for n in measured] == [data["residual_high_bytes"]]


def test_nothing_to_calibrate(tmp_path: Path) -> None:
    found = found_in(text_of("trtllm", "qwen3 bf16"), tmp_path, "qwen3-8b")
    with pytest.raises(UsageError, match="nothing to save"):
        calibration(found)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables or one JSON object; exit codes 0 and 3; nothing of the file's path in either."""
    path = tmp_path / "start.log"
    path.write_text(text_of("sglang", "llama"))
    assert main(["reconcile", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "every figure agrees" in shown and "327,680" in shown and str(tmp_path) not in shown
    assert main(["reconcile", str(path), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["engine"] == "sglang" and body["log"]["missing"] == []
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "server_args" in line))
    assert main(["reconcile", str(path)]) == ExitCode.INPUT
    error = capsys.readouterr().err
    assert "no capacity line" in error and "looked for: KV Cache is allocated" in error
    assert main(["reconcile", str(tmp_path / "absent")]) == ExitCode.INPUT


def test_golden_logs_of_llama_cpp_are_explained(shared: Path, tmp_path: Path) -> None:
    """Header, settings and lines as llama.cpp prints them: every size is kvplan's own, to the byte behind the MiB."""
    records = json.loads((shared / "data/llamacpp_golden.json").read_text())["records"]
    for record in [r for r in records if r["ok"]][::3]:
        arch = record["arch"]
        pairs = ((key if key.startswith(arch + ".") else f"{arch}.{key}", v) for key, v in record["gguf_kv"].items())
        flags = {True: "true", False: "false"}
        text = [
            f"llama_model_loader: - kv   0: general.architecture str = {arch}",
            *(f"llama_model_loader: - kv   1: {key} u32 = {json.dumps(v)}" for key, v in pairs),
            f"llama_context: n_seq_max = {record['n_seq_max']}",
            f"llama_context: n_ctx = {record.get('n_ctx', record['n_ctx_req'])}",
            f"llama_context: n_ubatch = {record['n_ubatch']}",
            f"llama_context: flash_attn = {record['flash_attn']}",
            f"llama_context: kv_unified = {flags[bool(record['kv_unified'])]}",
        ]
        found = found_in("\n".join([*text, *record["log"]]), tmp_path)
        assert found.agrees, (record["model"], found.causes)
        # The log does not print --swa-full: its larger windows are what tells it.
        assert not found.causes or (record["swa_full"] and "swa-full" in found.causes[0])
