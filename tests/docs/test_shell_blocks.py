"""Every shell block of the documentation is run as it stands, page by page, unless it says why not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, REPO, Block, blocks, read, shell_blocks

from kvplan.cli.main import main

LANGUAGES = {"sh", "text", "python", "yaml", "toml", "json", "diff"}
FOLLOWED = {
    "docs/add_an_engine.md": "tests/engines/test_walk_through.py",
    "docs/add_a_model.md": "tests/docs/test_walk_throughs.py",
    "docs/add_a_format.md": "tests/docs/test_walk_throughs.py",
    "docs/add_a_kernel.md": "tests/docs/test_walk_throughs.py",
}
"""Pages whose blocks need the files that the page makes, and the test that makes them and runs the blocks."""
LEFT_OUT = 0.15
"""At most this share of the blocks may be marked as not run."""
PLAIN = re.compile(r"kvplan ([^|<>;&$()`\\]*)(?:> ([\w.-]+))?")
PRELUDE = 'set -euo pipefail; kvplan() { "$PYTHON" -m kvplan "$@"; }; python() { "$PYTHON" "$@"; }\n'
RUN = [page for page in PAGES if page not in FOLLOWED and any(not b.reason for b in shell_blocks(page))]


def test_every_block_says_what_it_is() -> None:
    """A shell block under another name would not be run."""
    for page in PAGES:
        assert read(page).count("\n```") % 2 == 0, page
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page}: ```{block.language} is none of {sorted(LANGUAGES)}"
            if page == "docs/transcript.md":
                continue  # what was typed and printed; test_shown.py
            assert block.language == "sh" or not re.search(r"^\$? ?kvplan (?!--help)", block.text, re.M), block.text
            assert block.language == "sh" or not block.reason, page


def test_few_blocks_are_left_out() -> None:
    every = [block for page in PAGES for block in shell_blocks(page)]
    left_out = [block for block in every if block.reason]
    assert len(every) > 30 and len(left_out) <= LEFT_OUT * len(every), [b.page for b in left_out]
    assert all(len(block.reason) > 10 for block in left_out)


@pytest.mark.parametrize("page", FOLLOWED)
def test_walk_throughs_have_their_test(page: str) -> None:
    assert Path(page).name in (REPO / FOLLOWED[page]).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order and in one folder that looks like a checkout; nothing is written into the real one."""
    for entry in REPO.iterdir():
        if not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for block in shell_blocks(page):
        if block.reason:
            continue
        printed = run(block, tmp_path, capsys)
        missing = [text for text in block.shows if text not in printed]
        assert not missing, f"{page} says that this shows {missing}:\n{block.text}{printed}"


def run(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What it prints, blanks as one. Plain kvplan commands run in this process, which is quicker; all else in bash."""
    assert Path.cwd() == folder
    whole = block.text.replace("\\\n", " ")
    lines = [line.split(" #")[0].strip() for line in whole.splitlines() if line.strip() and not line.startswith("#")]
    plain = [PLAIN.fullmatch(line) for line in lines]
    if all(plain):
        printed = []
        for each in filter(None, plain):
            assert main(shlex.split(each[1])) == 0, f"{block.page}: {each[0]}"
            text = capsys.readouterr().out
            if each[2]:
                (folder / each[2]).write_text(text, encoding="utf-8")
            else:
                printed.append(text)
        return " ".join(" ".join(printed).split())
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (REPO, REPO / "kernels"))),
    }
    done = subprocess.run(
        ["bash", "-c", PRELUDE + block.text], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block.page}:\n{block.text}{done.stderr[-2000:]}"
    return " ".join(done.stdout.split())


def test_a_wrong_block_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("kvplan estimate no-such-model\n", "kvplan estimate llama-3.1-8b | false\n", "kvplan x > x\n"):
        with pytest.raises(AssertionError):
            run(Block("x.md", "sh", text), tmp_path, capsys)
