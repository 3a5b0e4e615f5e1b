"""Shared pieces of the spec tests: the collected facts, as records and as rows of their table."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
SHARED = REPO.parent / "shared"
FACTS = SHARED / "data" / "model_facts.json"
TABLE = SHARED / "facts" / "models.md"

# What the numbers of a table cell such as `36GDN(k16x128,v32x128,c4)` mean, in the words of the records.
CELLS = {
    "F": ("full", ("kv_heads", "k_dim", "v_dim")),
    "S": ("sliding", ("kv_heads", "k_dim", "v_dim")),
    "C": ("chunked", ("kv_heads", "k_dim", "v_dim")),
    "X": ("cross", ("kv_heads", "k_dim", "encoder_tokens")),
    "MLA": ("mla", ("kv_lora_rank", "rope_dim")),
    "LS": ("latent_sliding", ("latent_dim",)),
    "CMP": ("compressed", ("latent_dim", "tokens_per_state")),
    "IDX": ("index_key", ("k_dim", "tokens_per_state")),
    "RING": ("ring", ("rows", "dim")),
    "GDN": ("gated_deltanet", ("k_heads", "k_dim", "v_heads", "v_dim", "conv_kernel")),
    "M2": ("mamba2", ("heads", "head_dim", "d_state", "n_groups", "conv_kernel")),
    "none": ("none", ()),
    "shared": ("shared", ()),
}
CELL = re.compile(r"(\d+)(none|shared|M2|LS|CMP|IDX|RING|MLA|GDN|[FSCX])(\d*)(?:\(([^)]*)\))?(?= |$)")


def _cell(count: str, word: str, limit: str, inside: str) -> dict[str, Any]:
    kind, keys = CELLS[word]
    numbers = [int(n) for n in re.findall(r"\d+", inside.replace("fp32", "").replace("bf16", ""))]
    group: dict[str, Any] = {"kind": kind, "layers": int(count)} | dict(zip(keys, numbers, strict=False))
    if kind in ("full", "sliding", "chunked", "cross"):
        group.setdefault("v_dim", group["k_dim"])
    if kind == "ring":
        group["dtype"] = "bf16" if "bf16" in inside else "fp32"
    return group | ({"chunk" if kind == "chunked" else "window": int(limit)} if limit else {})


def _row(line: str) -> dict[str, Any] | None:
    """A record made of one row of the table; None for any other line."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if len(cells) != 14 or not cells[1].isdigit() or not cells[3].isdigit():
        return None
    found = CELL.findall(cells[2])
    if " ".join(cells[2].split()).count("(") != sum(1 for item in found if item[3]):
        return None
    total, _, active = cells[6].partition("/")
    number = [int(cell.replace(",", "") or 0) for cell in (cells[8], cells[9])]
    return {
        "hf_id": cells[0],
        "aliases": [],
        "num_hidden_layers": int(cells[1]),
        "layer_groups": [_cell(*item) for item in found],
        "num_attention_heads": int(cells[3]),
        "hidden_size": int(cells[4]),
        "vocab_size": int(cells[5]),
        "params_total_b": float(total) if total != "?" else None,
        "params_active_b": float(active) if active else None,
        "max_position_embeddings": int(cells[7]),
        "mtp_layers": int(cells[12] or 0),
        "confidence": {"V": "verified", "S": "single-source", "M": "from-memory"}[cells[13]],
        "kv_per_token": number[0],
        "index_per_token": number[1],
        "window_mb": float(cells[10].replace(",", "") or 0),
        "state_mb": float(cells[11].replace(",", "") or 0),
    }


@pytest.fixture(scope="session")
def facts() -> dict[str, Any]:
    """Records of the model facts by Hugging Face id, rows of their table where there is no record.

    Skipped without them, a failure under KVPLAN_CI=1.
    """
    if not FACTS.is_file():
        reason = f"the model facts are not there: {FACTS}"
        if os.environ.get("KVPLAN_CI") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        row = _row(line)
        if row:
            found[row["hf_id"]] = row
    records = json.loads(FACTS.read_text(encoding="utf-8"))["records"]
    for record in records:
        for alias in record["aliases"]:
            found.setdefault(alias, record)
    return found | {record["hf_id"]: record for record in records}


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the network: an installed hub client is not there, unless a test puts its own in place."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[str | bytes], str]:
    """Writes a file `spec.yaml` and returns its path."""

    def write(content: str | bytes) -> str:
        path = tmp_path / "spec.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write
