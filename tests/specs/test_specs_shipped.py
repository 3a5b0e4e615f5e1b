"""Every shipped file: it loads, is complete, is sourced, and covers its layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.specs.device import DeviceSpec, FigureSources
from kvplan.specs.find import specs_root
from kvplan.specs.groups import AttentionGroup, CrossGroup, LatentGroup, NoneGroup, StateGroup
from kvplan.specs.load import list_devices, list_models, load_device, load_model
from kvplan.specs.model import ModelSpec

MODELS = [
    "deepseek-v3",
    "deepseek-v3.2",
    "gemma-3-27b",
    "gemma-3n-e4b",
    "gpt-oss-120b",
    "llama-2-7b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "mistral-7b-v0.1",
    "qwen2.5-7b",
    "qwen3-32b",
    "qwen3-next-80b-a3b",
    "smollm2-135m",
]
DEVICES = ["a10", "a100-80gb", "b200", "h100-80gb", "h200", "l4", "l40s", "mi300x", "rtx-3090", "rtx-4090", "rtx-5090"]


def test_the_promised_specs_are_there() -> None:
    assert set(MODELS) <= set(list_models())
    assert set(DEVICES) <= set(list_devices())


@pytest.mark.parametrize("name", list_models())
def test_model_is_complete(name: str) -> None:
    spec = load_model(name)
    assert spec.id == name
    assert spec.hf_ids
    assert spec.provenance is not None
    assert spec.provenance.sources
    assert spec.hidden_size and spec.vocab_size


@pytest.mark.parametrize("name", list_models())
def test_groups_cover_every_layer_once(name: str) -> None:
    spec = load_model(name)
    owned = [i for group in spec.layer_groups if not group.overlay for i in spec.positions(group)]
    assert sorted(owned) == list(range(spec.layers))
    for group in spec.layer_groups:
        placed = spec.positions(group)
        assert placed == tuple(sorted(set(placed)))
        assert placed and placed[-1] < spec.layers


@pytest.mark.parametrize("name", list_models())
def test_model_survives_a_dump(name: str) -> None:
    spec = load_model(name)
    assert ModelSpec.model_validate(spec.model_dump()) == spec
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec
    assert hash(spec) == hash(ModelSpec.model_validate(spec.model_dump()))


def test_hf_ids_are_unique() -> None:
    ids = [known.lower() for name in list_models() for known in load_model(name).hf_ids]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", list_devices())
def test_device_is_complete(name: str) -> None:
    device = load_device(name)
    assert device.id == name
    assert device.num_sms
    assert (device.compute_capability is None) != (device.arch is None)
    assert device.hardware_formats[:2] == ("fp16", "bf16")
    given = [figure for figure in FigureSources.model_fields if getattr(device, figure)]
    assert all(getattr(device.sources, figure) for figure in given)
    assert DeviceSpec.model_validate_json(device.model_dump_json()) == device


@pytest.mark.parametrize("name", list_devices())
def test_device_figures_are_plausible(name: str) -> None:
    device = load_device(name)
    # The driver's total and the vendor's figure describe one memory: GB against GiB is 7%, ECC takes 6%.
    assert 0.93 < device.memory_bytes / device.memory_nominal < 1.08
    assert 10**11 < device.bandwidth_bytes_per_second < 10**13
    measured = device.measured_read_bandwidth_bytes_per_second
    assert measured is None or measured < device.bandwidth_bytes_per_second


@pytest.mark.parametrize("name", list_devices())
def test_fp8_needs_sm_89_and_fp4_needs_sm_100(name: str) -> None:
    device = load_device(name)
    if device.compute_capability is None:
        assert "fp8_e4m3_fnuz" in device.hardware_formats and "fp8_e4m3" not in device.hardware_formats
        return
    major, minor = map(int, device.compute_capability.split("."))
    assert ("fp8_e4m3" in device.hardware_formats) == ((major, minor) >= (8, 9))
    assert ("fp4_e2m1" in device.hardware_formats) == (major >= 10)


def test_driver_totals() -> None:
    mib = {"h200": 143771, "h100-80gb": 81559, "rtx-3090": 24576, "b200": 183359}
    assert {name: load_device(name).memory_bytes for name in mib} == {name: n * 2**20 for name, n in mib.items()}


def test_no_machine_paths_in_the_files() -> None:
    for path in specs_root().rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert "/work" not in text and "../" not in text and "shared/" not in text, path
        assert all(len(line) <= 120 for line in text.splitlines()), path


def test_the_worked_example_of_the_readme_loads(tmp_path: Path) -> None:
    readme = (specs_root() / "README.md").read_text(encoding="utf-8")
    path = tmp_path / "example.yaml"
    path.write_text(readme.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    spec = load_model(str(path))
    assert [len(spec.positions(group)) for group in spec.layer_groups] == [6, 30]


def test_the_readme_names_every_key_of_a_group() -> None:
    readme = (specs_root() / "README.md").read_text(encoding="utf-8")
    for kind in (AttentionGroup, LatentGroup, StateGroup, CrossGroup, NoneGroup):
        row = next(line for line in readme.splitlines() if line.startswith(f"| {kind.model_fields['name'].default} "))
        for key in kind.model_fields.keys() - {"kind", "name", "layers", "shard"}:
            assert key in row, f"{kind.__name__}.{key}"
