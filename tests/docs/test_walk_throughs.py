"""docs/add_a_model.md, add_a_format.md and add_a_kernel.md, followed to the letter in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import REPO, read

STEP = re.compile(
    r"[Ss]ave this(?: one, [^`]*?)? as\s+`(?P<file>[\w./-]+)`|[Ii]n\s+`(?P<edit>[\w./-]+\.py)`"
    r"|^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PRELUDE = 'set -euo pipefail; kvplan() { "$PYTHON" -m kvplan "$@"; }; python() { "$PYTHON" "$@"; }\n'


def follow(page: str, root: Path) -> str:
    """Make the page's changes in a copy of the project and run its commands; what they printed, blanks as one."""
    for folder in ("kvplan", "kernels", "model_specs", "tools"):
        shutil.copytree(REPO / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    (root / "docs").mkdir()
    file, printed = "", []
    for step in STEP.finditer(read(page)):
        if step["text"] is None:
            file = step["file"] or step["edit"]
        elif step["language"] == "sh":
            printed.append(run(step["text"], root))
        elif step["language"] == "diff":
            change(root / file, step["text"])
        else:
            (root / file).write_text(step["text"], encoding="utf-8")
    return " ".join("\n".join(printed).split())


def change(path: Path, diff: str) -> None:
    """Replace the lines of context and those with `-` by those of context and those with `+`; they stand there once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if not line.startswith("+")).strip("\n")
    after = "".join(line[1:] for line in lines if not line.startswith("-")).strip("\n")
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path.name} has this {text.count(before)} times:\n{before}"
    path.write_text(text.replace(before, after), encoding="utf-8")


def run(commands: str, root: Path) -> str:
    environment = {**os.environ, "PYTHON": sys.executable, "COLUMNS": "160"}
    environment["PYTHONPATH"] = os.pathsep.join((str(root), str(root / "kernels")))
    done = subprocess.run(
        ["bash", "-c", PRELUDE + commands], cwd=root, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, f"{commands}{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_a_model(tmp_path: Path) -> None:
    printed = follow("docs/add_a_model.md", tmp_path)
    small, large = 20 * 4 * 8192 * 2 * 64 * 2, (6 * 32768 + 18 * 1024) * 4 * 260
    for figure in (small, large):
        assert f"logical {figure:,} bytes" in printed and f"{figure:,} bytes" in read("docs/add_a_model.md")
    assert printed.count(f"logical {large:,} bytes") == 2 and "NVIDIA H200" in printed


def test_a_format(tmp_path: Path) -> None:
    printed = follow("docs/add_a_format.md", tmp_path)
    figure = 32 * 8 * 32768 * 160
    assert f"logical {figure:,} bytes" in printed and f"{figure:,} bytes" in read("docs/add_a_format.md")
    assert "### `duo4`" in printed and "0-63 k codes (128 int4)" in printed
    assert "'codes': ((1, 16, 64), 'torch.uint8')" in printed and "'scale': ((1, 16, 2), 'torch.float32')" in printed


@pytest.mark.slow
def test_a_kernel(tmp_path: Path) -> None:
    printed = follow("docs/add_a_kernel.md", tmp_path)
    assert "'decode': 'ok'" in printed and "[] error" in printed


def test_a_change_that_does_not_fit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("a = 1\nb = 2\n")
    change(path, " a = 1\n-b = 2\n+b = 3\n")
    assert path.read_text() == "a = 1\nb = 3\n"
    with pytest.raises(AssertionError):
        change(path, "-b = 2\n+b = 4\n")
