"""Shared pieces of the spec tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
FACTS = REPO.parent / "shared" / "data" / "model_facts.json"


@pytest.fixture(scope="session")
def facts() -> dict[str, Any]:
    """Records of the model facts by Hugging Face id; skipped without them, a failure under KVPLAN_CI=1."""
    if not FACTS.is_file():
        reason = f"the model facts are not there: {FACTS}"
        if os.environ.get("KVPLAN_CI") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    records = json.loads(FACTS.read_text(encoding="utf-8"))["records"]
    return {record["hf_id"]: record for record in records}


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[str | bytes], str]:
    """Writes a file `spec.yaml` and returns its path."""

    def write(content: str | bytes) -> str:
        path = tmp_path / "spec.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write
