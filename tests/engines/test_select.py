"""What a request means to an engine: names, versions, options and formats, each with the nearest that exists."""

from __future__ import annotations

import pytest

from kvplan.engines import engine_names, load_engine
from kvplan.engines.shared.select import available, choose_formats, choose_version, number_of, read_options
from kvplan.engines.shared.types import Case, Engine, EngineCache, EngineFormat, EngineOption, EngineVersion
from kvplan.errors import KvplanError, UnsupportedError, UsageError
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind

KV = frozenset({"k", "v"})


def no_cache(case: Case) -> EngineCache:
    raise AssertionError


def engine(*, apart: bool = False) -> Engine:
    return Engine(
        name="made-up", title="Made Up", flag=("--dtype",), apart=apart, rules=(), cache=no_cache,
        versions=(EngineVersion(name="2.10.0"), EngineVersion(name="2.9.1"), EngineVersion(name="1.0")),
        formats=(
            EngineFormat(option="auto", k="native", v="native", latent="native", nbytes=512, source="s"),
            EngineFormat(option="fp8", aliases=("fp8_e4m3",), k="fp8_e4m3", v="fp8_e4m3", latent="fp8_e4m3",
                         index="fp8_e4m3:token,scale=fp32", nbytes=256, source="s", since="2.9"),
            EngineFormat(option="q8", k="int8,scale=fp32,pack=slot", v="int8,scale=fp32,pack=slot", nbytes=264,
                         source="s", skips=("first=2:bf16",)),
            EngineFormat(option="old", k="int4", v="int4", nbytes=132, source="s", until="1.0"),
        ),
        options=(
            EngineOption(name="block_size", default=16, text="t", source="s"),
            EngineOption(name="ratio", kind=float, default=0.8, text="t", source="s"),
            EngineOption(name="unified", kind=bool, default=False, text="t", source="s"),
            EngineOption(name="backend", kind=str, choices=("flash", "triton"), text="t", source="s"),
        ),
    )  # fmt: skip


def chosen(made: Engine, version: str = "2.10.0", present: frozenset[str] = KV, **asked: str) -> dict[str, str]:
    return choose_formats(made, version, asked, present, "bf16")[0]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [(None, "2.10.0"), ("2.10.0", "2.10.0"), ("v2.10", "2.10.0"), ("2.9", "2.9.1"), ("1", "1.0"), ("2", "2.10.0")],
)
def test_versions(asked: str | None, meant: str) -> None:
    assert choose_version(engine(), asked) == meant


@pytest.mark.parametrize(("asked", "near"), [("2.8.0", "2.9.1"), ("2.11", "2.10.0"), ("0.1", "1.0"), ("new", "2.10.0")])
def test_an_unknown_version_names_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"Made Up {asked}") as caught:
        choose_version(engine(), asked)
    assert f"nearest covered version: {near};" in caught.value.hint


def test_numbers_of_versions_compare_as_numbers() -> None:
    assert number_of("v0.33.0") > number_of("0.9.2") and number_of("b11434") == (11434,) and number_of("dev") == ()


def test_options_have_kinds_and_defaults() -> None:
    given = ("block-size=32", "--ratio=0.5", "unified=on", "backend=triton")
    assert read_options(engine(), ()) == {"block_size": 16, "ratio": 0.8, "unified": False, "backend": None}
    assert read_options(engine(), given) == {"block_size": 32, "ratio": 0.5, "unified": True, "backend": "triton"}


@pytest.mark.parametrize(
    ("text", "says"),
    [("blocksize=1", "did you mean block_size"), ("block_size", "NAME=VALUE"), ("block_size=x", "block_size"),
     ("ratio=x", "0.8"), ("unified=maybe", "on or off"), ("backend=flush", "did you mean flash")],
)  # fmt: skip
def test_wrong_options(text: str, says: str) -> None:
    with pytest.raises(KvplanError) as caught:
        read_options(engine(), (text,))
    assert says in caught.value.message + caught.value.hint


def test_formats_by_the_engine_s_word_or_by_spelling() -> None:
    assert chosen(engine()) == {"k": "bf16", "v": "bf16"}
    for word in ("fp8", "fp8_e4m3", "fp8_e4m3:tensor"):
        assert chosen(engine(), kv=word) == {"k": "fp8_e4m3", "v": "fp8_e4m3"}
    spelled, options, skips = choose_formats(engine(), "2.10.0", {"kv": "int8:token,scale=fp32,pack=slot"}, KV, "bf16")
    assert options == {"k": "q8", "v": "q8"} and skips == ("first=2:bf16",)
    assert spelled["k"] == "int8,scale=fp32,pack=slot"


def test_index_keys_follow_the_rows_that_they_index() -> None:
    roles = frozenset({"latent", "index"})
    found = chosen(engine(), present=roles, kv="fp8")
    assert found == {"latent": "fp8_e4m3", "index": "fp8_e4m3:token,scale=fp32"}


def test_formats_that_an_engine_lacks() -> None:
    with pytest.raises(UnsupportedError, match="stores no k as int8") as caught:
        chosen(engine(), kv="int8")
    assert "it has: auto, fp8, q8;" in caught.value.hint
    with pytest.raises(UsageError, match="no cache format 'fp9'") as missing:
        chosen(engine(), kv="fp9")
    assert "did you mean fp8" in missing.value.hint
    with pytest.raises(UsageError, match="has no q8 for the latent"):
        chosen(engine(), present=frozenset({"latent"}), kv="q8")


def test_formats_by_version() -> None:
    assert [f.option for f in available(engine(), "2.10.0")] == ["auto", "fp8", "q8"]
    assert [f.option for f in available(engine(), "1.0")] == ["auto", "q8", "old"]
    with pytest.raises(UsageError):
        chosen(engine(), version="1.0", kv="fp8")


def test_one_option_for_k_and_v_or_one_for_each() -> None:
    assert chosen(engine(apart=True), k="fp8", v="q8")["v"] == "int8,scale=fp32,pack=slot"
    assert chosen(engine(apart=True), k="fp8") == {"k": "fp8_e4m3", "v": "bf16"}
    with pytest.raises(UsageError, match="cannot be combined"):
        chosen(engine(), k="fp8", v="q8")
    with pytest.raises(UsageError, match="only --k is given"):
        chosen(engine(), k="fp8")


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_is_declared_in_full(name: str) -> None:
    made = load_engine(name)
    assert made.name == name and made.versions and made.formats and made.rules and made.flag
    assert len({n for f in made.formats for n in f.names}) == sum(len(f.names) for f in made.formats)
    for declared in (*made.formats, *made.rules, *made.options):
        assert declared.source, declared
    for o in made.options:
        assert o.default is None or type(o.default) in (o.kind, int), o
        assert not o.choices or o.default in (None, *o.choices), o
    if made.page_option is not None:
        assert made.page_option in {o.name for o in made.options}


@pytest.mark.parametrize("name", engine_names())
def test_rows_are_spelled_canonically_and_have_the_stated_bytes(name: str) -> None:
    """So that what `kvplan engines` prints can be pasted after --k and --v."""
    for f in load_engine(name).formats:
        for role in ("k", "v", "latent", "index"):
            spelling = getattr(f, role)
            assert spelling in ("", "native") or parse_any(spelling).spelling == spelling, (f.option, role)
        if f.nbytes is not None:
            k, v = ("bf16" if s == "native" else s for s in (f.k, f.v))
            layout = bind([Tensor("k", parse_any(k), 128), Tensor("v", parse_any(v), 128)], 4, "bf16")
            assert layout.page_bytes(256) * f.tokens == 4 * 256 * f.nbytes, f.option
