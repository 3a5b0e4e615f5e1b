"""One small config per way of saying what a layer keeps; the expected figures are written as arithmetic beside it."""

from __future__ import annotations

import importlib.util
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.specs.importers.aliases import ALIASES
from kvplan.specs.importers.config import import_config
from kvplan.specs.importers.table import FAMILIES, canonical

REPO = Path(__file__).resolve().parents[2]
CASES: dict[str, Any] = json.loads((REPO / "tests" / "configs" / "families.json").read_text(encoding="utf-8"))


def accuracy() -> Any:
    """tools/accuracy.py, which knows how to ask kvplan for each figure."""
    spec = importlib.util.spec_from_file_location("kvplan_accuracy", REPO / "tools" / "accuracy.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["kvplan_accuracy"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = accuracy().FIGURES
    return found


def value(text: str) -> Fraction:
    """Plain arithmetic, exact also where it divides."""
    return Fraction(eval(text, {"__builtins__": {}})).limit_denominator(10**6)


@pytest.mark.parametrize("name", CASES)
def test_figures(name: str, figures: dict[str, Any]) -> None:
    spec = import_config(CASES[name]["config"], name).spec
    for key, expected in CASES[name]["expected"].items():
        assert figures[key](spec) == value(expected), key


@pytest.mark.parametrize("name", CASES)
def test_nothing_that_is_not_expected(name: str, figures: dict[str, Any]) -> None:
    expected = CASES[name]["expected"]
    spec = import_config(CASES[name]["config"], name).spec
    for key in ("kv_per_token", "window_bytes", "index_per_token_bf16", "ring_bytes", "cross_per_enc_token"):
        if key not in expected:
            assert figures[key](spec) == 0, key
    if not {"rec_elems", "conv_elems"} & set(expected):
        assert figures["rec_elems"](spec) == figures["conv_elems"](spec) == 0


def test_most_families_have_a_case() -> None:
    covered = set()
    for case in CASES.values():
        config = case["config"]
        for inner in ("text_config", "llm_config", "thinker_config"):
            config = config.get(inner) or config
        config = config.get("text_config") or config
        covered.add(id(FAMILIES[canonical(config.get("model_type") or case["config"]["model_type"]) or ""]))
    missing = {name for name, family in FAMILIES.items() if id(family) not in covered}
    # Families whose every word and rule is another family's.
    assert missing <= {"gemma", "lara_mini", "mellum", "speech_to_text", "zamba", "minimax_m2"}, missing


def test_every_alias_leads_somewhere() -> None:
    for name, target in ALIASES.items():
        assert target in FAMILIES and canonical(name) == target
    assert canonical("Qwen3_5") == "qwen3_5_text"
    assert canonical("no_such_model") is None


def test_the_vision_tower_is_never_read() -> None:
    config = dict(CASES["gemma3 text inside"]["config"])
    plain = import_config(config, "x").spec
    config["vision_config"] = {"num_hidden_layers": "nonsense", "hidden_size": -1}
    assert import_config(config, "x").spec == plain
