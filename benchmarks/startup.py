"""Times of `kvplan --help` and `kvplan estimate llama-3.1-8b --context 32k --json` as whole processes.

python benchmarks/startup.py [--kvfit PYTHON] [--repeats N] [--json FILE]

--kvfit names the Python of an environment with PyPI's kvfit (pip install kvfit). kvfit reads a model's config from the
Hugging Face hub; here a server inside this program answers it over the loopback, so that no network is measured. The
commands take turns; figures are medians. Processor time is steadier than wall time on a machine that does other work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TARGET, STRETCH = 2.5, 1.5
HELP_TARGET = 0.090
"""Seconds that `kvplan --help` may take beyond bare Python."""
MODEL = "meta-llama/Llama-3.1-8B"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "vocab_size": 128256, "intermediate_size": 14336,
}  # fmt: skip
REPOSITORY = {
    "sha": "0" * 40,
    "siblings": [{"rfilename": "model-00001-of-00001.safetensors", "size": 16_060_522_752}],
    "safetensors": {"parameters": {"BF16": 8_030_261_248}, "total": 8_030_261_248},
}
# kvfit has no option for the hub's address.
KVFIT = "import sys, kvfit.hf as hf; hf.HF_BASE = {base!r}; from kvfit.cli import main; sys.exit(main(sys.argv[1:]))"


class Hub(BaseHTTPRequestHandler):
    """Answers a config and a repository listing."""

    def do_GET(self) -> None:
        body = json.dumps(CONFIG if self.path.endswith("config.json") else REPOSITORY).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """No log: stdout is for the figures."""


def run(command: list[str]) -> tuple[float, float]:
    """(wall, processor) seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(commands: dict[str, list[str]], repeats: int) -> dict[str, dict[str, float]]:
    """Medians of each command; the first run of each only warms the file cache."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            one = run(command)
            if turn:
                times[name].append(one)
    return {
        name: {
            "wall_seconds": round(statistics.median(w for w, _ in each), 4),
            "processor_seconds": round(statistics.median(p for _, p in each), 4),
        }
        for name, each in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvfit", metavar="PYTHON", help="Python of an environment that has kvfit")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    kvplan = [sys.executable, "-m", "kvplan"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "kvplan --help": [*kvplan, "--help"],
        "kvplan estimate": [*kvplan, "estimate", "llama-3.1-8b", "--context", "32k", "--json"],
    }
    if args.kvfit:
        base = f"http://127.0.0.1:{hub.server_port}"
        commands["kvfit"] = [args.kvfit, "-c", KVFIT.format(base=base), MODEL, "--context", "32768", "--json",
                             "--gpus", "1", "--hardware", "h200"]  # fmt: skip
    result: dict[str, Any] = {
        "benchmark": "startup",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "repeats": args.repeats,
        "times": measure(commands, args.repeats),
    }
    for name, each in result["times"].items():
        print(f"{name:18} {each['wall_seconds']:.3f} s wall, {each['processor_seconds']:.3f} s processor")
    walls = {name: each["wall_seconds"] for name, each in result["times"].items()}
    result["help_beyond_python_seconds"] = round(walls["kvplan --help"] - walls["python -c pass"], 4)
    result["help_target_seconds"] = HELP_TARGET
    print(f"kvplan --help: {result['help_beyond_python_seconds']:.3f} s beyond bare Python (target {HELP_TARGET} s)")
    if args.kvfit:
        ours, theirs = result["times"]["kvplan estimate"], result["times"]["kvfit"]
        result["ratio"] = {k: round(ours[k] / theirs[k], 2) for k in ours}
        print(
            f"kvplan / kvfit: {result['ratio']['wall_seconds']:.2f}x wall, {result['ratio']['processor_seconds']:.2f}x "
            f"processor (target {TARGET}x, stretch {STRETCH}x)"
        )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
