"""Starts a validation where it must run: in this process on a GPU, in a subprocess for Triton's interpreter.

The interpreter is chosen by an environment variable that Triton reads when it is imported, so the CPU path is a child
process (`python -m kvplan.validate.launch`) that prints one JSON event per line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kvplan.errors import ExitCode, KvplanError
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec
from kvplan.validate.report import ValidationReport, ValidationRequest

Progress = Callable[[str], None]


def start(
    request: ValidationRequest,
    spec: ModelSpec,
    source: str,
    command: str,
    progress: Progress,
    previous: ValidationReport | None = None,
) -> Iterator[ValidationReport]:
    """Reports of a validation, one per finished format.

    Args:
        source: the name or path that `spec` was loaded from; the child process loads it again.
        previous: the report to go on with.
    """
    if request.device == "cpu":
        job = {
            "request": request.model_dump(mode="json"),
            "source": source,
            "command": command,
            "previous": previous.model_dump(mode="json", by_alias=True) if previous else None,
        }
        yield from _in_child(job, progress)
        return
    from kvplan.validate.run import validate

    yield from validate(request, spec, command, progress, previous)


def _in_child(job: dict[str, Any], progress: Progress) -> Iterator[ValidationReport]:
    child = subprocess.Popen(
        [sys.executable, "-m", "kvplan.validate.launch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps(job))
        child.stdin.close()
        for line in child.stdout:
            event = json.loads(line)
            if "report" in event:
                yield ValidationReport.model_validate(event["report"])
            elif "error" in event:
                raise _error(event["error"])
            else:
                progress(event["progress"])
        if child.wait():
            raise RuntimeError(f"the interpreter process ended with code {child.returncode}")
    finally:
        child.kill()
        child.wait()


def _error(event: dict[str, Any]) -> KvplanError:
    error = KvplanError(event["message"], event["hint"])
    error.exit_code = ExitCode(event["code"])
    return error


def main() -> int:
    """The child: reads a job from stdin, prints events."""
    from kvplan.validate.run import validate

    # A Ctrl-C reaches both processes: the parent decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.load(sys.stdin)

    def emit(event: dict[str, object]) -> None:
        print(json.dumps(event), flush=True)

    try:
        request = ValidationRequest.model_validate(job["request"])
        spec = load_model(job["source"])
        previous = ValidationReport.model_validate(job["previous"]) if job["previous"] else None
        for report in validate(request, spec, job["command"], lambda text: emit({"progress": text}), previous):
            emit({"report": report.model_dump(mode="json", by_alias=True)})
    except KvplanError as error:
        emit({"error": {"message": error.message, "hint": error.hint, "code": int(error.exit_code)}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
