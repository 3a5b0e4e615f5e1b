"""Write docs/transcript.md: the README's way from a clone to a verified recommendation, run in a fresh clone.

python tools/transcript.py

It needs network for pip, some minutes, and a clean tree: what is cloned is the last commit.
"""

from __future__ import annotations

import datetime
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs" / "transcript.md"
SECTION = "## From a clone to a verified recommendation"
ADDRESS = "ADDRESS-OF-THIS-REPOSITORY"
MARK = "::kvplan-transcript::"
HEAD = """# From a clone to a verified recommendation

<!-- Written by tools/transcript.py; do not edit. -->

The shell blocks of the README's section of this name, run in a fresh clone on {day},
{machine}, Python {python}, no GPU. Nothing was typed that the README does not say; {address}
was this project's own repository.

```text
{text}
```
"""


def commands(readme: str) -> list[str]:
    """The lines of the section's shell blocks."""
    section = readme.split(SECTION)[1].split("\n## ")[0]
    return [line for block in re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S) for line in block.splitlines()]


def run(lines: list[str], folder: Path) -> str:
    """One shell for all lines, as a user has; each line, then what it printed on both streams."""
    script = ["set -e", "exec 2>&1"]
    for line in lines:
        script += [f"printf '%s\\n' {MARK}", line.replace(ADDRESS, str(REPO))]
    python = Path(shutil.which("python3") or sys.executable).resolve().parent
    environment = {"HOME": str(folder), "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin", "COLUMNS": "100"}
    bash = ["bash", "-c", "\n".join(script)]
    done = subprocess.run(bash, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nended with {done.returncode}")
    outputs = done.stdout.split(f"{MARK}\n")[1:]
    shown = [f"$ {line}\n{_without_places(out, folder)}" for line, out in zip(lines, outputs, strict=True)]
    return "\n".join(text.rstrip() for text in shown)


def _without_places(text: str, folder: Path) -> str:
    """Folders of this machine say nothing to a reader, nor do pip's remarks on its index."""
    kept = [line.rstrip() for line in text.splitlines() if not line.startswith(("WARNING: ", "[notice]"))]
    return "\n".join(kept).replace(str(folder), "~").replace(str(REPO), ADDRESS)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        text = run(commands((REPO / "README.md").read_text(encoding="utf-8")), Path(folder))
    machine = f"{platform.system()} {platform.machine()}"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    PAGE.write_text(
        HEAD.format(day=day, machine=machine, python=platform.python_version(), address=ADDRESS, text=text),
        encoding="utf-8",
    )
