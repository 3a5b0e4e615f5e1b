"""Every way a YAML file can be wrong: one line with file, line, key and expectation, one hint, and only InputError."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.errors import ExitCode, InputError
from kvplan.specs.load import load_device, load_model

SPEC = """\
kvplan_spec: 1
id: llama-test
hf_ids: [meta-llama/Llama-Test]
params: {total: 8030000000}
max_context: 131072
layers: 32
native_dtype: bfloat16
layer_groups:
  - name: full
    kind: attention
    layers: 32
    q_heads: 32
    kv_heads: 8
    head_dim: 128
    retain: all
provenance: {confidence: verified, sources: [config.json]}
"""
Write = Callable[[str | bytes], str]
SECOND = "stride: 1\n  - {name: x, kind: attention, q_heads: 8, kv_heads: 8, head_dim: 64, layers: "


def refused(path: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load_model(path)
    error = caught.value
    assert error.exit_code == ExitCode.INPUT
    for text in (error.message, error.hint):
        assert text and "\n" not in text and "Traceback" not in text
        assert "pydantic" not in text and "Input should" not in text
    return error


def test_the_unchanged_text_is_accepted(spec_file: Write) -> None:
    assert load_model(spec_file(SPEC)).id == "llama-test"


# old text, new text, line, key path, expectation, hint
SCHEMA = [
    ("kv_heads: 8", "kv_head: 8", 13, "layer_groups[0].kv_head", "unknown key, expected one of q_heads", "kv_heads"),
    ("native_dtype", "native_dytpe", 7, "native_dytpe", "unknown key", "did you mean native_dtype?"),
    ("{total:", "{totl:", 4, "params.totl", "unknown key, expected one of total, active", "did you mean total?"),
    ("retain: all", "retain: {windw: 4}", 15, "layer_groups[0].retain.windw", "unknown key", "did you mean window?"),
    ("    layers: 32", "    layers: {evry: 2, at: [0]}", 11, "layers.evry", "every, at, upto", "did you mean every?"),
    ("    kv_heads: 8\n", "", 9, "layer_groups[0].kv_heads", "required", "add kv_heads"),
    ("max_context: 131072\n", "", 1, "max_context", "required", "add max_context"),
    ("    kind: attention\n", "", 9, "layer_groups[0].kind", "required", "add kind"),
    ("kind: attention", "kind: atention", 10, "kind", "attention, latent, state, cross, none", "mean attention?"),
    ("bfloat16", "bf16", 7, "native_dtype", "expected float32, bfloat16, float16", "did you mean bfloat16?"),
    ("verified", "verifed", 16, "provenance.confidence", "verified, single-source, memory", "mean verified?"),
    ("kvplan_spec: 1", "kvplan_spec: 2", 1, "kvplan_spec", "expected 1", "README"),
    ("kvplan_spec: 1", "kvplan_spec: true", 1, "kvplan_spec", "expected 1", "README"),
    ("kvplan_spec: 1", "kvplan_spec: 1.0", 1, "kvplan_spec", "expected 1", "README"),
    ("kv_heads: 8", 'kv_heads: "8"', 13, "layer_groups[0].kv_heads", "expected a whole number, got '8'", "README"),
    ("kv_heads: 8", "kv_heads: true", 13, "layer_groups[0].kv_heads", "expected a whole number, got true", "README"),
    ("kv_heads: 8", "kv_heads: 8.0", 13, "layer_groups[0].kv_heads", "expected a whole number, got 8.0", "README"),
    ("kv_heads: 8", "kv_heads:", 13, "layer_groups[0].kv_heads", "expected a whole number, got nothing", "README"),
    ("kv_heads: 8", "kv_heads: 0", 13, "layer_groups[0].kv_heads", "at least 1, got 0", "README"),
    ("kv_heads: 8", "kv_heads: -8", 13, "layer_groups[0].kv_heads", "at least 1, got -8", "README"),
    ("kv_heads: 8", "kv_heads: 65537", 13, "layer_groups[0].kv_heads", "at most 65536", "README"),
    ("kv_heads: 8", "kv_heads: 7", 12, "layer_groups[0].q_heads", "a multiple of kv_heads = 7", "README"),
    ("8030000000", "8.03e9", 4, "params.total", "expected a whole number, got '8.03e9'", "README"),
    ("max_context: 131072", "max_context: 1073741825", 5, "max_context", "at most 1073741824", "README"),
    ("layers: 32\nnative", "layers: 10001\nnative", 6, "layers", "at most 10000", "README"),
    ("head_dim: 128", "head_dim: 1048577", 14, "layer_groups[0].head_dim", "at most 1048576", "README"),
    ("head_dim: 128", "head_dim: big", 14, "layer_groups[0].head_dim", "a number or {k: N, v: N}", "README"),
    ("head_dim: 128", "head_dim: {k: 128}", 14, "layer_groups[0].head_dim.v", "required", "add v"),
    ("retain: all", "retain: most", 15, "layer_groups[0].retain", "expected all, {window: W}", "README"),
    ("retain: all", "retain:", 15, "layer_groups[0].retain", "expected all, {window: W}", "README"),
    ("retain: all", "retain: {}", 15, "layer_groups[0].retain", "expected all, {window: W}", "README"),
    ("retain: all", "retain: {window:}", 15, "layer_groups[0].retain.window", "a number of tokens", "README"),
    ("retain: all", "retain: {window: 1, ring: 2}", 15, "layer_groups[0].retain", "exactly one of", "README"),
    ("retain: all", "sinks: 1", 15, "layer_groups[0].sinks", "expected true or false, got 1", "README"),
    ("retain: all", "softcap: 0", 15, "layer_groups[0].softcap", "more than 0", "README"),
    ("params: {total: 8030000000}", "params: 8", 4, "params", "expected a mapping", "README"),
    ("[meta-llama/Llama-Test]", "meta-llama/Llama-Test", 3, "hf_ids", "expected a list", "README"),
    ("[meta-llama/Llama-Test]", "[a/b, a b]", 3, "hf_ids[1]", "owner/name", "README"),
    ("id: llama-test", "id: Llama Test", 2, "id", "expected a lower-case name", "README"),
    ("    layers: 32", "    layers: 31", 11, "layer_groups[0].layers", "expected 32, the model's layers", "README"),
    ("    layers: 32", "    layers: most", 11, "layer_groups[0].layers", "or rest", "README"),
    ("    layers: 32", "    layers: true", 11, "layer_groups[0].layers", "or rest", "README"),
    ("    layers: 32", "    layers: []", 11, "layer_groups[0].layers", "at least one", "README"),
    ("    layers: 32", "    layers: [1, 1]", 11, "layer_groups[0].layers", "ascending", "README"),
    ("    layers: 32", "    layers: [2, 1]", 11, "layer_groups[0].layers", "ascending", "README"),
    ("    layers: 32", "    layers: [0, 32]", 11, "layer_groups[0].layers", "indices 0 to 31, got 32", "README"),
    ("    layers: 32", "    layers: [0, -1]", 11, "layer_groups[0].layers[1]", "at least 0", "README"),
    ("    layers: 32", "    layers: {every: 2, at: [2]}", 11, "layers.at", "below every = 2", "README"),
    ("    layers: 32", "    layers: {every: 2, at: [0], upto: 33}", 11, "layers.upto", "at most", "README"),
    ("    layers: 32", "    layers: {every: 40, at: [39]}", 11, "layers", "meets none", "README"),
    ("    layers: 32", "    layers: [0, 1]", 8, "layer_groups", "no group owns 30 of 32 layers: 2, 3", "README"),
    ("    layers: 32", "    overlay: true\n    layers: 32", 8, "layer_groups", "no group owns 32 of 32", "README"),
    ("    layers: 32", "    overlay: true\n    layers: rest", 12, "layers", "cannot take the rest", "README"),
    ("retain: all", SECOND + "32}", 11, "layer_groups[0].layers", "a count is not enough", "README"),
]


@pytest.mark.parametrize(("old", "new", "line", "key", "expected", "hint"), SCHEMA)
def test_schema_error(spec_file: Write, old: str, new: str, line: int, key: str, expected: str, hint: str) -> None:
    assert SPEC.count(old) == 1
    path = spec_file(SPEC.replace(old, new))
    error = refused(path)
    assert error.message.startswith(f"{path}:{line}:")
    where, _, what = error.message.removeprefix(f"{path}:").partition(": ")
    assert where.split(":")[0] == str(line)
    spelled, _, text = what.partition(": ")
    assert spelled.endswith(key)
    assert expected in text
    assert hint in error.hint


TWO = SPEC.replace("    layers: 32", "    layers: {every: 2, at: [0]}").replace("retain: all", SECOND + "LAYERS}")


@pytest.mark.parametrize(
    ("layers", "line", "expected"),
    [
        ("[0, 1]", 16, "layer 0 belongs to group 'full' already"),
        ("{every: 2, at: [1], upto: 30}", 8, "no group owns 1 of 32 layers: 31"),
        ("16", 16, "a count is not enough"),
    ],
)
def test_groups_that_do_not_fit_together(spec_file: Write, layers: str, line: int, expected: str) -> None:
    path = spec_file(TWO.replace("LAYERS", layers))
    error = refused(path)
    assert error.message.startswith(f"{path}:{line}:")
    assert expected in error.message
    assert load_model(spec_file(TWO.replace("LAYERS", "rest"))).layers == 32


def test_only_one_rest(spec_file: Write) -> None:
    text = TWO.replace("LAYERS", "rest").replace("{every: 2, at: [0]}", "rest")
    assert "only one group may take the rest" in refused(spec_file(text)).message


def test_names_of_groups(spec_file: Write) -> None:
    twice = TWO.replace("LAYERS", "rest").replace("name: x", "name: full")
    assert "the name 'full' is taken" in refused(spec_file(twice)).message
    reads = SPEC.replace("    layers: 32", "    layers: {every: 2, at: [0]}").replace(
        "retain: all", "stride: 1\n  - {name: x, kind: none, layers: rest, reads: [ful]}"
    )
    path = spec_file(reads)
    error = refused(path)
    assert error.message.startswith(f"{path}:16:")
    assert "layer_groups[1].reads[0]: no layer group is called 'ful'" in error.message
    assert error.hint == "did you mean full?"
    mtp = refused(spec_file(SPEC + "mtp: {layers: 1, cache_like: [fll]}\n"))
    assert "mtp.cache_like[0]" in mtp.message and mtp.hint == "did you mean full?"


def test_a_latent_needs_query_heads_unless_it_is_an_index(spec_file: Write) -> None:
    latent = "    kind: latent\n    layers: 32\n    width: 512\n"
    text = SPEC[: SPEC.index("    kind:")] + latent + SPEC[SPEC.index("provenance") :]
    path = spec_file(text)
    error = refused(path)
    assert error.message.startswith(f"{path}:9:") and "layer_groups[0].q_heads" in error.message
    assert load_model(spec_file(text.replace("width: 512", "width: 512\n    role: index"))).layers == 32


def test_first_problem_and_number_of_others(spec_file: Write) -> None:
    path = spec_file(SPEC.replace("kv_heads: 8", "kv_heads: x").replace("131072", "0").replace("verified", "sure"))
    error = refused(path)
    assert error.message.startswith(f"{path}:5:")
    assert error.message.endswith("(and 2 more)")


YAML = [
    ("id: llama-test", "id: a\nid: b", 3, "the key 'id' is given twice (first in line 2)"),
    ("    q_heads: 32", "    q_heads: 32\n    q_heads: 32", 13, "given twice"),
    ("id: llama-test", "id: !!python/object:os.system x", 2, "tag"),
    ("id: llama-test", "id: !!python/object/apply:os.system [ls]", 2, "tag"),
    ("id: llama-test", "id: !!python/name:os.system", 2, "tag"),
    ("id: llama-test", "id: !!binary aGFsbG8=", 2, "tag"),
    ("id: llama-test", "id: !mine x", 2, "the tag !mine is not allowed"),
    ("id: llama-test", "id: &a x\nnotes: [*a]", 3, "aliases (*name) are not allowed"),
    ("id: llama-test", "1: x", 2, "expected a plain word as key"),
    ("id: llama-test", "? [a]\n: x", 2, "expected a plain word as key"),
    ("id: llama-test", "id: x\n---\nid: y", 3, "a second document starts here"),
    ("id: llama-test", 'id: "open', 17, "not valid YAML"),
    ("id: llama-test", "\tid: x", 2, "not valid YAML"),
    ("id: llama-test", "id: a: b", 2, "not valid YAML"),
    ("id: llama-test", "id: a\x07", 2, "control character U+0007"),
    ("8030000000", "1:30", 4, "expected a plain decimal number, got 1:30"),
    ("8030000000", "010", 4, "expected a plain decimal number, got 010"),
    ("8030000000", "0x10", 4, "expected a plain decimal number, got 0x10"),
    ("8030000000", "9" * 5000, 4, "expected a plain decimal number"),
    ("retain: all", "softcap: .inf", 15, "expected a plain decimal number, got .inf"),
]


@pytest.mark.parametrize(("old", "new", "line", "expected"), YAML)
def test_yaml_that_is_no_spec(spec_file: Write, old: str, new: str, line: int, expected: str) -> None:
    path = spec_file(SPEC.replace(old, new))
    error = refused(path)
    assert error.message.startswith(f"{path}:{line}:")
    assert expected in error.message


BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"- a\n- b\n", "expected a mapping"),
        (b"just text", "expected a mapping"),
        (b"\x7fELF\x00\x01\x02", "binary"),
        (SPEC.encode("utf-16"), "binary"),
        (b"id: \xe9t\xe9\n", "not UTF-8"),
        (b"id: x\nnotes: [\xff]\n", "2: not UTF-8"),
        (b"x" * (2**20 + 1), "larger than 1 MiB"),
        (b"[" * 100_000, "nested deeper"),
        (b"- " * 5_000, "nested deeper"),
        (b'id: "\\UFFFFFFFF"\n', "not YAML text"),
        (b"%YAML 9.9\n---\nid: x\n", "not valid YAML"),
        (BOMB.encode(), "aliases"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_files_that_are_no_text_of_a_spec(spec_file: Write, content: bytes, expected: str) -> None:
    path = spec_file(content)
    error = refused(path)
    assert error.message.startswith(path)
    assert expected in error.message


def test_byte_order_mark_and_line_ends_are_fine(spec_file: Write) -> None:
    assert load_model(spec_file(b"\xef\xbb\xbf" + SPEC.encode())).id == "llama-test"
    assert load_model(spec_file(SPEC.replace("\n", "\r\n"))).id == "llama-test"


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert "no config.json in this folder" in refused(str(tmp_path)).message
    assert "no such file" in refused(str(tmp_path / "missing.yaml")).message
    assert "not a regular file" in refused(os.devnull).message
    assert refused("a\0b.yaml").message
    assert refused("x" * 5000 + ".yaml").message


def test_a_surrogate_never_reaches_the_terminal(spec_file: Write) -> None:
    for text in ('id: "\\uD800"', '"\\uD800": 1'):
        error = refused(spec_file(SPEC.replace("id: llama-test", text)))
        error.message.encode()


def test_device_files_are_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    text = (
        "kvplan_device: 1\nid: gpu\nname: GPU\nmemory_bytes: 1000\nmemory_nominal: 1000\n"
        "bandwidth_bytes_per_second: 1000\n"
        "sources: {memory_bytes: a, memory_nominal: b, bandwidth_bytes_per_second: c}\n"
    )
    path.write_text(text)
    assert load_device(str(path)).memory_bytes == 1000
    bad = {
        text.replace("memory_nominal: 1000", "memory_nominl: 1000"): ("gpu.yaml:5:1: memory_nominl", "memory_nominal"),
        text + "num_sms: 5\n": ("gpu.yaml:7:1: sources.num_sms: num_sms is given, so its source", "add num_sms"),
        text + "compute_capability: 9.0\n": ("gpu.yaml:8:1: compute_capability: expected text", "README"),
        text + "hardware_formats: [fp8_e4m3fn]\n": ("gpu.yaml:8:20: hardware_formats[0]", "fp8_e4m3"),
    }
    for changed, (message, hint) in bad.items():
        path.write_text(changed)
        with pytest.raises(InputError) as caught:
            load_device(str(path))
        assert message in caught.value.message
        assert hint in caught.value.hint
