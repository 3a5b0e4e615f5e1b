"""The spellings of engines' rows against bytes that the engines themselves computed or allocated (../shared/data)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan.engines import load_engine
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def pair(k: str, v: str, dim: int, heads: int, dtype: str = "bf16") -> Layout:
    return bind([Tensor("k", parse_any(k), dim), Tensor("v", parse_any(v), dim)], heads, dtype)


def latent(spelling: str, nope: int = 512, rope: int = 64, role: str = "latent") -> Layout:
    return bind([Tensor(role, parse_any(spelling), nope + rope, rope)], 1, "bf16")


def golden(shared: Path, engine: str) -> Any:
    return json.loads((shared / "data" / f"{engine}_golden.json").read_text(encoding="utf-8"))


def test_pages_of_vllm(shared: Path) -> None:
    """Pages of full attention, latents and index keys, for every option that has a row in the table."""
    rows = {f.option: f for f in load_engine("vllm").formats if f.k and f.k != "native"}
    rows = {name: f for name, f in rows.items() if name not in ("float16", "bfloat16", "fp8_inc", "nvfp4_4over6")}
    seen: dict[str, int] = {}
    for record in golden(shared, "vllm")["records"]:
        inputs, kind = record["inputs"], record["kind"]
        option = inputs.get("kv_cache_dtype", kind)
        if kind == "full_attention" and option in rows and "backend" in inputs:
            layout = pair(rows[option].k, rows[option].v, inputs["head_size"], inputs["num_kv_heads"])
        elif kind == "mla_indexer":
            layout = latent("fp8_e4m3:token,scale=fp32,pack=page", inputs["index_head_dim"], 0, "index")
        elif kind == "mla":
            layout = latent({"auto": "bf16", "fp8": "fp8_e4m3"}.get(option, option))
        else:
            continue
        want = record["outputs"]["unpadded_page_size_bytes"]
        assert layout.page_bytes(inputs["block_size"]) == want, record["id"]
        seen[option] = seen.get(option, 0) + 1
    # The file has two of the three octave forms.
    assert {*rows, "fp8_ds_mla", "mla_indexer"} - {"octave_k3v4"} <= set(seen)
    assert sum(seen.values()) >= 50


def test_cells_of_sglang(shared: Path) -> None:
    """Bytes of a token over all layers of a rank, less the one dequantised layer that some FP4 paths charge."""
    rows = {f.option: f.k for f in load_engine("sglang").formats if f.k not in ("", "native", "bf16")}
    seen: dict[str, int] = {}
    for record in golden(shared, "sglang")["records"]:
        i = record["inputs"]
        plain = record["kind"] == "cell_size" and not {"swa_layers", "dsa"} & set(i)
        both_scales = i.get("linear_scales") and i.get("native_scales")
        if not plain or i.get("kv_cache_dtype") not in rows or both_scales:
            continue
        spelling = rows[i["kv_cache_dtype"]]
        heads = i["kv_heads"] if "kv_heads" in i else max(1, i.get("total_kv_heads", 0) // i["attn_tp"])
        layout = latent(spelling) if i.get("mla") else pair(spelling, spelling, i["head_dim"], heads)
        workspace = {"torch.bfloat16": 2, "torch.float8_e4m3fn": 1}.get(i.get("dequant_workspace"), 0)
        extra = 2 * heads * i["head_dim"] * workspace if workspace else 0
        assert i["layers"] * layout.page_bytes(1) + extra == record["outputs"]["cell_size_bytes"], record["id"]
        seen[spelling] = seen.get(spelling, 0) + 1
    assert set(seen) == set(rows.values()) and sum(seen.values()) > 80


def test_blocks_of_ggml(shared: Path) -> None:
    """Block sizes that the library prints of itself."""
    types = {t["type"]: t for t in golden(shared, "llamacpp")["meta"]["ggml_types"]}
    for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"):
        block, nbytes = types[name]["block"], types[name]["bytes"]
        assert pair(name, name, 128, 8).page_bytes(1) == 2 * 8 * 128 // block * nbytes


def test_a_latent_of_llamacpp() -> None:
    """DeepSeek-V3 in q8_0: 61 layers x 8,192 cells, as llama.cpp allocated it."""
    assert 61 * latent("q8_0").page_bytes(8192) == 305_823_744


def test_arrays_of_mlx(shared: Path) -> None:
    """Words, scales and biases at capacity, 2, 3, 4 and 8 bits, groups of 32, 64 and 128, 16 and 32 bit models."""
    equal = 0
    for r in golden(shared, "mlx")["records"]:
        if r.get("cache") != "QuantizedKVCache" or "total_bytes" not in r:
            continue
        spelling = f"int{r['bits']}:group/{r['group_size']},asym,scale=model"
        layout = pair(spelling, spelling, r["head_dim"], r["kv_heads"], DTYPES[r["dtype"]])
        assert r["batch"] * layout.page_bytes(r["keys"][0]["shape"][2]) == r["total_bytes"], r
        equal += 1
    assert equal > 100


def test_blocks_of_openvino(shared: Path) -> None:
    """K and V of a block of 32 tokens, u8 and u4, K by channel or by token, groups of 32 and 64."""
    equal = 0
    for r in golden(shared, "openvino")["records"]:
        props, heads, dim = r.get("props", {}), r.get("kv_heads"), r.get("head_dim")
        both = props.get("KV_CACHE_PRECISION")
        precision = {s: props.get(f"{s}_CACHE_PRECISION", both) for s in ("KEY", "VALUE")}
        if not r.get("inputs") or "EXECUTION_MODE_HINT" in props or not {*precision.values()} <= {"u8", "u4"}:
            continue
        by_token = props.get("KEY_CACHE_QUANT_MODE") == "BY_TOKEN"
        for side, at in (("KEY", "key_cache.0"), ("VALUE", "value_cache.0")):
            group = props.get(f"{side}_CACHE_GROUP_SIZE", 0)
            where = f":group/{group}" if group else ""
            where = ":channel/32" if side == "KEY" and not by_token else where
            pack = "page" if where == ":channel/32" else "slot"
            spelling = f"int{precision[side][1]}{where},asym,scale=fp32,pack={pack}"
            layout = bind([Tensor("k", parse_any(spelling), dim)], heads, "bf16")
            assert layout.page_bytes(32) == r["inputs"][at]["bytes_per_block"], (r["setting"], side)
            equal += 1
    assert equal > 40


def test_quantised_parts_of_transformers(shared: Path) -> None:
    """quanto and hqq: groups over the flattened tensor, scale and zero in the model's dtype."""
    equal = 0
    for r in golden(shared, "hf")["records"]:
        options = r.get("quant_options", {})
        bits, group = options.get("nbits", 4), options.get("q_group_size", 64)
        if not r.get("cache_kind", "").startswith(("QuantizedCache[quanto", "QuantizedCache[hqq")) or bits in (1, 3):
            continue
        for part in r.get("layer_groups", []):
            tensors = part["tensors"]
            quantised = sum(t["bytes"] for name, t in tensors.items() if name.startswith("_quantized"))
            waiting = tensors["keys"]["shape"][2] if len(tensors.get("keys", {}).get("shape", [])) == 4 else 0
            heads, dim = r["config"]["num_key_value_heads"], r["config"]["head_dim"]
            if heads * dim % group:
                continue
            spelling = f"int{bits}:group/{group},asym,row,scale=model"
            layout = pair(spelling, spelling, dim, heads, DTYPES[r["model_dtype"]])
            assert quantised == r["batch"] * layout.page_bytes(r["cached_positions"] - waiting), r
            equal += 1
    assert equal > 40
