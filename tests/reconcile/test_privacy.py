"""Nothing of a log but figures, settings and the model's name is kept."""

from __future__ import annotations

import io
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.reconcile.names import model_name
from kvplan.reconcile.run import explain, read_log, to_json
from kvplan.report.reconcile import print_reconciliation
from kvplan.report.terminal import QuietConsole

words = st.text(string.ascii_lowercase, min_size=4, max_size=12).map("zq".__add__)

LOG = """\
Sep 11 00:42:49 {host} {user}[3110]: INFO 10-06 [api_server.py:1] vLLM API server version 0.11.2
({host}) args: Namespace(model='/home/{user}/{folder}/Qwen3-14B', host='{host}', download_dir='/home/{user}')
(APIServer pid=77123) INFO [utils.py:233] non-default args: {{'model': '/home/{user}/{folder}/Qwen3-14B', 'host': \
'10.20.30.40', 'served_model_name': ['{user}'], 'max_model_len': 40960, 'kv_cache_dtype': 'auto', \
'api_key': ['{folder}']}}
(RayWorkerWrapper pid=77123, ip=10.20.30.40) INFO [x.py:1] Model loading took 27.52 GiB and 3 s, /home/{user}/{folder}
(EngineCore_DP0 pid=77123) INFO [gpu_worker.py:298] Available KV cache memory: 11.06 GiB
(EngineCore_DP0 pid=77123) INFO [kv_cache_utils.py:1087] GPU KV cache size: 72,496 tokens
"""
LLAMA = """\
build: 6123 (abc) with cc for {host}
srv    load_model: loading model '/home/{user}/{folder}/qwen3-14b.gguf'
llama_model_loader: loaded meta data with 3 key-value pairs and 9 tensors from \
C:\\Users\\{user}\\{folder}\\qwen3-14b.gguf (version GGUF V3 (latest))
load_tensors: RPC[10.20.30.40:50052] model buffer size = 9000.00 MiB
llama_kv_cache: RPC[10.20.30.40:50052] KV buffer size =   640.00 MiB
llama_kv_cache: size =  640.00 MiB (  4096 cells,  40 layers,  1/1 seqs), K (f16):  320.00 MiB, V (f16):  320.00 MiB
"""


@pytest.mark.parametrize("text", [LOG, LLAMA])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(host=words, user=words, folder=words)
def test_nothing_private_is_kept(text: str, host: str, user: str, folder: str, tmp_path: Path) -> None:
    path = tmp_path / f"{user}.log"
    path.write_text(text.format(host=host, user=user, folder=folder))
    start = read_log(path)
    found = explain(start)
    console = QuietConsole(file=io.StringIO(), width=200)
    print_reconciliation(found, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    kept = "".join((repr(found), to_json(found), shown))
    for secret in (host, user, folder, "10.20.30.40", "77123", "50052", "/home", "Users", str(tmp_path)):
        assert secret not in kept
    assert found.model in ("qwen3-14b", "")
    assert start.model in ("Qwen3-14B", "qwen3-14b.gguf")


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/models/Qwen3-8B/", "Qwen3-8B"),
        ("./Qwen3-8B", "Qwen3-8B"),
        ("models/Qwen3-8B", "Qwen3-8B"),
        ("C:\\Users\\ann\\Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M.gguf"),
        ("/root/.cache/huggingface/hub/models--facebook--opt-125m/snapshots/27dcfa74d334bc871f3234de431e71c6eeba5dd6",
         "facebook/opt-125m"),
        ("/root/.ollama/models/blobs/sha256-ff82381e2bea77d91c1b824c7afb83f6fb73e9f7de9dda631bcdbca564aa5435", None),
        ("Gemma 3 27b It", "Gemma 3 27b It"),
        ("s3://bucket/model", None),
        ("/", None),
        ("10.1.2.3/model", None),
    ],
)  # fmt: skip
def test_model_names(given_name: str, kept: str | None) -> None:
    assert model_name(given_name) == kept
