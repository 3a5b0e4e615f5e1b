"""The page of formats is generated: it says what the layouts say, and leaves no name out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kvplan.formats.grammar import NAMES, PAIRS
from kvplan.report.bytemap import field_map

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def catalogue() -> ModuleType:
    spec = importlib.util.spec_from_file_location("format_catalogue", REPO / "tools" / "format_catalogue.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_layouts_say(catalogue: ModuleType) -> None:
    stored = (REPO / "docs" / "formats.md").read_text(encoding="utf-8")
    assert stored == catalogue.render(), "run python tools/format_catalogue.py"


def test_every_name_is_on_the_page(catalogue: ModuleType) -> None:
    text = catalogue.render()
    for name in (*NAMES, *PAIRS):
        assert f"| `{name}` |" in text and f"### `{name}`" in text


def test_maps_end_where_the_slot_ends(catalogue: ModuleType) -> None:
    for name in (*NAMES, "kivi2", "int3", "int8:channel/32"):
        for plane in catalogue.layout_of(name).planes:
            whole = plane.page_bytes(catalogue.TOKENS, 1) if plane.pack == "page" else plane.slot_bytes
            last = field_map(plane, catalogue.TOKENS).split("; ")[-1]
            assert int(last.split()[0].split("-")[1]) == whole - 1, (name, plane.name)
