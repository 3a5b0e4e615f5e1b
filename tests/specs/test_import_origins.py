"""What an import tells: an origin for every number, what was filled in, and YAML that loads again as the same spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.specs.importers.config import import_config, import_path, spec_id
from kvplan.specs.importers.result import Imported
from kvplan.specs.importers.write import imported_yaml, spec_yaml
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec

SMALL: dict[str, Any] = {
    name: case["config"]
    for name, case in json.loads(
        (Path(__file__).resolve().parents[1] / "configs" / "families.json").read_text(encoding="utf-8")
    ).items()
}


def numbers(value: Any, at: str) -> set[str]:
    """Paths of all numbers in a value."""
    if isinstance(value, dict):
        return {path for key, item in value.items() for path in numbers(item, f"{at}.{key}")}
    return {at} if isinstance(value, int) and not isinstance(value, bool) else set()


def structural(spec: ModelSpec) -> set[str]:
    """Every number that decides bytes, as origins name it."""
    found = {"layers", "max_context", "native_dtype"}
    for group in spec.layer_groups:
        at = f"layer_groups.{group.name}"
        data = group.model_dump(mode="json", exclude_defaults=True)
        found.add(f"{at}.layers")
        for key, value in data.items():
            if key not in ("layers", "name", "kind", "reads", "softcap"):
                found |= numbers(value, f"{at}.{key}")
    return found


def made(name: str) -> Imported:
    return import_config(SMALL[name], name)


@pytest.mark.parametrize("name", SMALL)
def test_every_number_has_one_origin(name: str) -> None:
    imported = made(name)
    fields = [origin.field for origin in imported.origins]
    assert len(fields) == len(set(fields))
    assert structural(imported.spec) <= set(fields)
    assert all(origin.source and origin.how in ("read", "defaulted", "assumed") for origin in imported.origins)


@pytest.mark.parametrize("name", SMALL)
def test_a_number_that_was_read_stands_in_the_file(name: str) -> None:
    """`read` with a plain field name as source: the file has that number under that name."""
    text = json.dumps(SMALL[name])
    for origin in made(name).origins:
        last = origin.source.rsplit(".", 1)[-1]
        if (
            origin.how == "read"
            and " " not in origin.source
            and last.isidentifier()
            and not origin.field.endswith((".layers", "dtype"))
        ):
            assert f'"{last}": {origin.value}' in text, origin


@pytest.mark.parametrize("name", SMALL)
def test_yaml_loads_again_equal(name: str, tmp_path: Path) -> None:
    imported = made(name)
    for text in (imported_yaml(imported), spec_yaml(imported.spec)):
        file = tmp_path / "spec.yaml"
        file.write_text(text, encoding="utf-8")
        assert load_model(str(file)) == imported.spec


@pytest.mark.parametrize("name", list_models())
def test_shipped_specs_are_written_and_read_again(name: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(spec_yaml(load_model(name)), encoding="utf-8")
    assert load_model(str(file)) == load_model(name)


def test_filled_in_and_assumed_numbers_are_told() -> None:
    imported = made("gemma3 text inside")
    how = {origin.field: (origin.how, origin.value) for origin in imported.origins}
    assert how["layer_groups.full.head_dim"] == ("defaulted", "256")
    assert how["layer_groups.full.kv_heads"] == ("defaulted", "4")
    assert how["layer_groups.sliding.retain.window"] == ("read", "64")
    assert how["native_dtype"] == ("assumed", "bfloat16")
    filled, assumed = imported.spec.assumptions
    assert "layer_groups.full.head_dim = 256 (gemma3_text's config class: head_dim)" in filled
    assert "native_dtype = bfloat16" in assumed


def test_a_file_that_says_all_leaves_nothing_open() -> None:
    config = {**SMALL["llama"], "head_dim": 8, "torch_dtype": "bfloat16"}
    imported = import_config(config, "x")
    assert imported.spec.assumptions == () and imported.notes == ()


@pytest.mark.parametrize(
    ("config", "context", "how"),
    [
        ({"max_position_embeddings": 4096}, 4096, "read"),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4,
          "original_max_position_embeddings": 4096}}, 16384, "read"),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
          "original_max_position_embeddings": 8192}}, 131072, "read"),
        ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 1000, "read"),
        ({"max_position_embeddings": None}, 2**20, "assumed"),
        ({}, 2048, "defaulted"),
    ],
)  # fmt: skip
def test_longest_context(config: dict[str, Any], context: int, how: str) -> None:
    base = {key: value for key, value in SMALL["llama"].items() if key != "max_position_embeddings"}
    imported = import_config({**base, **config}, "x")
    origin = next(o for o in imported.origins if o.field == "max_context")
    assert (imported.spec.max_context, origin.how) == (context, how)


def test_hints_and_fields_without_effect_are_noted() -> None:
    quantised = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    extra = {"sliding_window": 99, "quantization_config": quantised, "use_sliding_window": False}
    imported = import_config({**SMALL["llama"], **extra}, "x")
    assert imported.spec.layer_groups == made("llama").spec.layer_groups
    assert any("sliding_window = 99 has no effect" in note for note in imported.notes)
    assert any("a cache of 8 bits (float)" in note for note in imported.notes)
    assert set(imported.spec.notes) == set(imported.notes)


def test_prediction_layers_are_recorded_and_not_charged() -> None:
    imported = made("deepseek_v3")
    assert imported.spec.mtp is not None
    assert (imported.spec.mtp.layers, imported.spec.mtp.cache_like) == (1, ("latent",))
    shared = import_config({**SMALL["glm_moe_dsa schedule"], "num_nextn_predict_layers": 1}, "x").spec.mtp
    assert shared is not None and shared.cache_like == ("latent", "indexer")
    windowed = import_config(SMALL["deepseek_v4"], "x").spec.mtp
    assert windowed is not None and windowed.cache_like == ("swa",)
    without = import_config({**SMALL["deepseek_v3"], "num_nextn_predict_layers": 0}, "x")
    assert without.spec.mtp is None
    assert without.spec.layer_groups == imported.spec.layer_groups


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("models/Llama-3.1-8B/config.json", "llama-3.1-8b"),
        ("config.json", "fallback"),
        ("hub/models--owner--My.Model/snapshots/0123abc/config.json", "my.model"),
        ("a/b c (1).json", "b-c-1"),
        ("Org/My-Model", "my-model"),
        ("C:\\x\\Y.json", "y"),
        ("///", "fallback"),
    ],
)
def test_names(where: str, found: str) -> None:
    assert spec_id(where, "fallback") == found


def test_a_folder_and_its_file_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL["gemma2"]), encoding="utf-8")
    assert import_path(folder) == import_path(folder / "config.json")
    assert load_model(str(folder)).id == load_model(str(folder / "config.json")).id == "my-model"


IMPORTED_AS_SHIPPED = {
    "deepseek-v3.2": "deepseek-v3.2.json",
    "gemma-3-27b": "gemma-3-27b.json",
    "gemma-3n-e4b": "gemma-3n-e4b.json",
    "gpt-oss-120b": "gpt-oss-120b.json",
    "llama-3.1-8b": "llama-3.1-8b.json",
    "mistral-7b-v0.1": "mistral-7b-v0.1.json",
    "qwen2.5-7b": "qwen2.5-7b.json",
    "qwen3-32b": "qwen3-32b.json",
    "qwen3-next-80b-a3b": "qwen3-next-80b-a3b.json",
}


@pytest.mark.parametrize("name", IMPORTED_AS_SHIPPED)
def test_the_imported_config_has_the_layers_of_the_shipped_spec(name: str, shared: Path) -> None:
    shipped = load_model(name)
    imported = import_path(shared / "data" / "configs" / IMPORTED_AS_SHIPPED[name]).spec

    def shape(spec: ModelSpec) -> list[str]:
        keep = [g.model_dump(exclude={"layers", "name", "reads", "softcap"}) for g in spec.layer_groups]
        return sorted(str((spec.positions(g), body)) for g, body in zip(spec.layer_groups, keep, strict=True))

    assert shape(imported) == shape(shipped)
