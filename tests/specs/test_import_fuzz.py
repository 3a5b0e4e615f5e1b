"""2,000 mutated configs: a known effect matches its closed form, everything else refuses or is told. No traceback.

The configs are the small ones of tests/configs, and, where the facts are beside the project, those as they lie there.
"""

from __future__ import annotations

import copy
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.importers.config import import_config
from kvplan.specs.importers.result import Imported

REPO = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    name: case["config"]
    for name, case in json.loads((REPO / "tests" / "configs" / "families.json").read_text(encoding="utf-8")).items()
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers",
          "num_transformer_layers")  # fmt: skip
INDEX_LISTS = ("full_attn_idxs", "hybrid_layer_ids", "attn_layer_indices", "sliding_window_layers", "local_layer_ids",
               "cross_attention_layers", "kv_source_layer_ids", "index_source_layer_ids", "kda_layers",
               "full_attn_layers", "kv_source_layers")  # fmt: skip
JUNK: tuple[Any, ...] = (-1, 0, 1.5, 3, 10**12, 2**70, "x", "8", True, None, [], [None], [1, 2], ["full_attention"], {},
                         {"a": 1}, float("nan"), float("inf"))  # fmt: skip
# The layers of these repeat with a period that divides their number, or follow a list: twice the layers give twice
# the bytes.
PERIODIC = [name for name in SMALL if name not in (
    "gemma3 text inside", "gemma3n shared", "gemma4", "gemma4 shared", "cohere2_moe", "glm_moe_dsa frequency", "hy_v4",
    "phi4flash", "lfm3", "qwen2 window switched on", "qwen2_moe window", "step3p5 tail", "per layer overrides",
)]  # fmt: skip


def figures(imported: Imported) -> dict[str, Fraction]:
    """Bytes per token and bytes per sequence, by role."""
    spec = imported.spec
    plain = dict.fromkeys(("k", "v", "latent", "index", "state_dtype", "conv_dtype"), "bf16")
    plan = make_plan(PlanRequest(model=spec.id, context=spec.max_context, **plain), spec)
    assert plan.kv is not None
    found: dict[str, Fraction] = {}
    for group in plan.kv.by_group:
        slope = Fraction(group.bytes_per_token.numerator, group.bytes_per_token.denominator)
        for key, value in ((f"{group.role} slope", slope), (f"{group.role} fixed", group.fixed_bytes_per_sequence)):
            found[key] = found.get(key, Fraction(0)) + value
    return {key: value for key, value in found.items() if value}


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The mapping that an importer reads."""
    for name in ("text_config", "llm_config", "thinker_config"):
        if isinstance(config.get(name), dict):
            return text_of(config[name])
    return config


def double_layers(config: dict[str, Any]) -> None:
    """Twice the layers: the count, lists with one entry per layer, and lists of layer numbers."""
    text = text_of(config)
    count = next((text[name] for name in reversed(LAYERS) if isinstance(text.get(name), int)), None)
    count = count or next(len(text[name]) for name in ("layers_block_type", "hybrid_override_pattern") if name in text)
    _double(text, count)
    for name in LAYERS:
        if isinstance(text.get(name), int) and name in text:
            text[name] *= 2
    if text.get("max_window_layers"):
        text["max_window_layers"] *= 2


def _double(level: dict[str, Any], count: int) -> None:
    for key, value in list(level.items()):
        if isinstance(value, dict):
            _double(value, count)
        elif key in INDEX_LISTS:
            level[key] = value + [number + count for number in value]
        elif key == "attention_types":
            level[key] = value * 2
        elif key == "compress_ratios":
            level[key] = value[:count] * 2
        elif key == "hybrid_override_pattern" or (
            key != "block_types" and isinstance(value, list) and len(value) == count
        ):
            level[key] = value * 2


@pytest.mark.parametrize("name", PERIODIC)
def test_twice_the_layers(name: str) -> None:
    before = figures(import_config(SMALL[name], name))
    config = copy.deepcopy(SMALL[name])
    double_layers(config)
    after = figures(import_config(config, name))
    assert after == {key: 2 * value for key, value in before.items()}


HEADS = ("num_attention_heads", "num_key_value_heads")


@pytest.mark.parametrize("name", SMALL)
def test_twice_the_heads(name: str) -> None:
    """Query and KV heads doubled, channels per head as before: attention doubles, latents and index keys do not."""
    config = copy.deepcopy(SMALL[name])
    text = text_of(config)
    if not all(type(text.get(key)) is int for key in HEADS) or type(text.get("head_dim")) is not int:
        return
    before = figures(import_config(config, name))
    for key in (*HEADS, "swa_num_attention_heads", "swa_num_key_value_heads", "num_global_key_value_heads"):
        if type(text.get(key)) is int:
            text[key] *= 2
    for key in ("num_attention_heads_per_layer",):
        if key in text:
            text[key] = [2 * count for count in text[key]]
    other = text.get("attention_other_setting")
    if other:
        other["num_attention_heads"] *= 2
        other["num_attention_groups"] *= 2
    if "num_attention_groups" in text:
        text["num_attention_groups"] *= 2
    after = figures(import_config(config, name))
    for role in ("kv slope", "kv fixed"):
        assert after.get(role, 0) == 2 * before.get(role, 0)
    for role in ("latent slope", "latent fixed", "index slope"):
        assert after.get(role, 0) == before.get(role, 0)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("off", [None, 0])
def test_window_off(name: str, off: int | None) -> None:
    """Every row that the window held is then held for every token."""
    config = copy.deepcopy(SMALL[name])
    text = text_of(config)
    keys = [key for key in ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
            if type(text.get(key)) is int]  # fmt: skip
    before = figures(import_config(config, name))
    if not keys or "kv fixed" not in before or "block_configs" in text:
        return
    width = text[keys[0]]
    for key in keys:
        text[key] = off
    after = figures(import_config(config, name))
    assert after["kv slope"] == before.get("kv slope", 0) + before["kv fixed"] / width
    assert "kv fixed" not in after


def mutate(config: dict[str, Any], rng: random.Random) -> str:
    """Damage one field of the mapping that is read; the field's name."""
    text = text_of(config)
    key = rng.choice(sorted(text))
    kind = rng.randrange(5)
    if kind == 0:
        del text[key]
    elif kind == 1 and isinstance(text[key], list) and text[key]:
        place = rng.randrange(len(text[key]))
        text[key] = rng.choice([text[key][:place], [*text[key], *text[key][place:]], [
            *text[key][:place], rng.choice(JUNK), *text[key][place + 1:]]])  # fmt: skip
    elif kind == 2:
        text[f"{key}_{rng.randrange(9)}"] = rng.choice(JUNK)
    elif kind == 3:
        key = rng.choice(["vision_config", "audio_config", "rope_scaling", "quantization_config", "use_cache"])
        config[key] = rng.choice(JUNK)
    else:
        text[key] = rng.choice(JUNK)
    return key


def outcome(config: dict[str, Any], name: str) -> Imported | None:
    """The import, or None where it is refused in one line."""
    try:
        return import_config(config, name)
    except InputError as error:
        assert "\n" not in error.message + error.hint
        assert len(error.message) <= 640 and error.hint
        return None


def check_mutations(configs: dict[str, Any], count: int, seed: int) -> tuple[int, int, int]:
    """(refused, unchanged, changed and told); anything else fails."""
    rng = random.Random(seed)
    names = sorted(configs)
    bases = {name: import_config(configs[name], name) for name in names}
    known = {name: figures(base) for name, base in bases.items()}
    refused = unchanged = told = 0
    for _ in range(count):
        name = rng.choice(names)
        config = copy.deepcopy(configs[name])
        key = mutate(config, rng)
        made = outcome(config, name)
        if made is None:
            refused += 1
        elif figures(made) == known[name]:
            unchanged += 1
        else:
            base = bases[name]
            # A valid number (3, or a number in a list) is a different model; otherwise the reader is told.
            news = (made.spec.assumptions, made.notes) != (base.spec.assumptions, base.notes)
            number = type(text_of(config).get(key)) is int
            read = number or any(key in origin.source and origin.how == "read" for origin in made.origins)
            assert news or read, (name, key, text_of(config).get(key))
            told += 1
    return refused, unchanged, told


def test_random_damage_to_small_configs() -> None:
    refused, unchanged, told = check_mutations(SMALL, 1_500, 20261130)
    assert refused > 300 and unchanged > 300 and told > 30


def test_random_damage_to_real_configs(shared: Path) -> None:
    folder = shared / "data" / "configs"
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    configs = {entry["file"]: json.loads((folder / entry["file"]).read_text(encoding="utf-8")) for entry in index}
    refused, unchanged, _ = check_mutations(configs, 1_000, 7)
    assert refused > 50 and unchanged > 200


def test_random_text_is_refused(tmp_path: Path) -> None:
    """Cut and overwritten files: an InputError, nothing else."""
    from kvplan.specs.load import load_model

    rng = random.Random(3)
    file = tmp_path / "config.json"
    for _ in range(200):
        raw = bytearray(json.dumps(SMALL[rng.choice(sorted(SMALL))]).encode())
        for _ in range(rng.randrange(4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        file.write_bytes(bytes(raw[: rng.randrange(len(raw) + 1)]) if rng.random() < 0.5 else bytes(raw))
        try:
            load_model(str(file))
        except InputError as error:
            assert "\n" not in error.message
