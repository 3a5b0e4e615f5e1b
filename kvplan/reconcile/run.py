"""`read_log`: what a log says; `explain`: each figure beside kvplan's own."""

from __future__ import annotations

from pathlib import Path

from kvplan.reconcile.clean import read_lines
from kvplan.reconcile.read import read_start
from kvplan.reconcile.types import StartUp


def read_log(path: Path | str) -> StartUp:
    """The last complete start-up in a log of vLLM, SGLang, llama.cpp, TensorRT-LLM, LMDeploy or Ollama.

    Raises:
        InputError: no text file, no engine's lines, two engines', or none that says how large the cache is.
    """
    return read_start(read_lines(Path(path)))
