"""What the project says about itself: the other package of the name kvplan is never recommended."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
WRONG = re.compile(r"pip install ['\"]?kvplan(?!-advisor)\b")


def tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=REPO, capture_output=True, text=True
    )
    return [REPO / name for name in done.stdout.split()]


def test_no_text_installs_the_other_kvplan() -> None:
    texts = [p for p in tracked() if p.suffix in {".py", ".md", ".toml", ".yaml"} and p != Path(__file__)]
    assert len(texts) > 30
    assert [str(p) for p in texts if WRONG.search(p.read_text(encoding="utf-8"))] == []


def test_the_pattern_can_fail() -> None:
    assert WRONG.search("pip install kvplan")
    assert WRONG.search('pip install "kvplan[gpu]"')
    assert not WRONG.search("pip install kvplan-advisor")
    assert not WRONG.search("pip install 'kvplan-advisor[gpu]'")
