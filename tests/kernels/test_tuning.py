"""Launch shapes on GPUs that the table does not know: what is tried, what wins, what is kept, and what is not used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kvplan_kernels.attention.config import MEASURED, DecodeConfig, default_config, is_measured
from kvplan_kernels.attention.decode import decode, launch_config, launch_mode
from kvplan_kernels.attention.variant import Variant
from kvplan_kernels.bench.timing import Timing
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.testing import DEVICE, layout_of
from kvplan_kernels.tuning import kept, key, launch
from kvplan_kernels.tuning.candidates import candidates, neighbours
from kvplan_kernels.tuning.key import hash_of, launch_key
from kvplan_kernels.tuning.launch import Launch, tuned_config
from kvplan_kernels.tuning.search import Found, search
from torch import Tensor

BASE, FAST, SLOW = DecodeConfig(32, 1, 3, 4), DecodeConfig(64, 1, 3, 4), DecodeConfig(32, 2, 3, 2)


def quiet(_text: str) -> None:
    return None


# What is tried


@pytest.mark.parametrize("spelling", ["fp16", "int8", "int4:token,asym", "int4:group/32,asym", "int2", "int8:group/16"])
@pytest.mark.parametrize(("page", "columns", "heads"), [(128, 4, 128), (128, 4, 512), (128, 64, 128), (48, 4, 8)])
def test_about_a_dozen_near_the_table(spelling: str, page: int, columns: int, heads: int) -> None:
    layout = layout_of(spelling, dims=(128, 128), heads=8)
    base = default_config(layout, page, columns, heads, 132)
    tried = neighbours(base, candidates(base, layout, page, heads, 132))
    assert tried[0] == base and 8 < len(tried) <= 20 and len(set(tried)) == len(tried)
    for c in tried[1:]:
        one = [c.block_tokens != base.block_tokens, c.num_stages != base.num_stages]
        place = (c.num_warps, c.ctas_per_sm, c.maxnreg, c.programs)
        one.append(place != (base.num_warps, base.ctas_per_sm, base.maxnreg, base.programs))
        # One thing, or a smaller tile for more programs and the other way round.
        assert sum(one) == 1 or c.block_tokens * c.ctas_per_sm == base.block_tokens * base.ctas_per_sm
        assert page % c.block_tokens == 0 and c.num_warps * c.ctas_per_sm % 4 == 0
    # On a GPU of 132 SMs one program per head is tried for 512 heads, not for 128.
    assert any(c.programs for c in tried) == (heads == 512)


def test_a_tile_is_traded_for_programs() -> None:
    layout = layout_of("fp16", dims=(128, 128), heads=8)
    tried = neighbours(DecodeConfig(64, 2, 3, 2), candidates(DecodeConfig(64, 2, 3, 2), layout, 128, 128, 132))
    assert {DecodeConfig(32, 1, 3, 4), DecodeConfig(32, 2, 3, 4), DecodeConfig(128, 4, 3, 1)} <= set(tried)
    assert DecodeConfig(32, 1, 4, 4) not in tried and DecodeConfig(32, 1, 3, 8) not in tried


# What wins


def test_the_fastest_that_is_right_wins() -> None:
    """Of six shapes one is not compiled, one is wrong, one is not a number and one cannot be timed."""
    right = torch.linspace(-1, 1, 64)
    broken, wrong, empty, untimed = (DecodeConfig(128, 1, s, 4) for s in (3, 4, 5, 6))
    outputs = dict.fromkeys((BASE, SLOW, untimed), right) | {FAST: right * 1.001, wrong: right * 1.003}
    outputs[empty] = right.clone().fill_(float("nan"))
    times = {BASE: 3.0, FAST: 2.0, SLOW: 4.0, broken: 0.1, wrong: 0.1, empty: 0.1}
    said: list[str] = []
    tried = [BASE, broken, wrong, SLOW, FAST, empty, untimed]
    found = search(tried, outputs.__getitem__, times.__getitem__, said.append)
    assert (found.config, found.seconds, found.table_seconds) == (FAST, 2.0, 3.0)
    assert len(said) == 6 and said[-1].endswith("7 of 7")


def test_the_table_wins_a_tie_and_its_own_failure_is_told() -> None:
    found = search([BASE, FAST], lambda _: torch.ones(4), lambda _: 1.0, quiet)
    assert found.config == BASE
    with pytest.raises(KeyError):
        search([BASE, FAST], {FAST: torch.ones(4)}.__getitem__, lambda _: 1.0, quiet)


class OnGpu(Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


def test_a_lost_device_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """An illegal access of one shape would make all later ones fail, and the table's would look like the best."""

    def run(config: DecodeConfig) -> Tensor:
        if config == FAST:
            raise RuntimeError("an illegal memory access was encountered")
        return torch.ones(4).as_subclass(OnGpu)

    works = [True]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: works[0] or pytest.fail("lost", pytrace=False))
    assert search([BASE, FAST, SLOW], run, lambda c: c.num_stages / c.num_warps, quiet).config == SLOW
    works[0] = False
    with pytest.raises(pytest.fail.Exception, match="lost"):
        search([BASE, FAST, SLOW], run, lambda _: 1.0, quiet)


# Where it is searched and what is kept


@pytest.fixture
def cache() -> Cache:
    return made("int8")


def made(spelling: str, page_size: int = 64, requests: int = 1) -> Cache:
    layout = layout_of(spelling, dims=(32, 32), heads=1)
    cache = allocate(layout, num_sequences=requests, max_tokens=40, page_size=page_size, device=DEVICE)
    rows = torch.randn(requests, 40, 1, 32, generator=torch.Generator().manual_seed(5)).half().to(DEVICE)
    append(cache, rows, rows.flip(1))
    return cache


def query(cache: Cache, heads: int = 2) -> Tensor:
    shape = (cache.num_sequences, heads, 32)
    return torch.randn(shape, generator=torch.Generator().manual_seed(6)).half().to(DEVICE)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A GPU that the table does not know, and an empty cache folder; two shapes, and a stub of the kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "is_measured", lambda _device: False)
    monkeypatch.setattr(key, "gpu", lambda _device: {"gpu": "unknown", "capability": 89, "sms": 4})
    monkeypatch.setattr(launch, "rotating", lambda cache: [cache])
    monkeypatch.setattr(launch, "neighbours", lambda base, _all: [base, replace(base, num_stages=4)])
    monkeypatch.setattr(launch, "decode", lambda _q, _cache, *, out, **_how: out.fill_(1.0))
    yield tmp_path / "kvplan" / "launches"


class Clock:
    """Runs each call once; four stages are faster than three. Counts the shapes that it timed."""

    def __init__(self) -> None:
        self.timed = 0

    def __call__(self, calls: Any) -> Timing:
        self.timed += 1
        for call in calls:
            call()
        return Timing(1.0 / calls[0].keywords["config"].num_stages, (), len(calls))


@pytest.fixture
def tuned(cache: Cache) -> Callable[..., tuple[Launch, int, list[str]]]:
    """What a call finds, how many shapes it timed and what it said."""

    def call(cache: Cache = cache, **how: Any) -> tuple[Launch, int, list[str]]:
        clock, said = Clock(), list[str]()
        found = tuned_config(query(cache), cache, say=said.append, timer=clock, **how)
        return found, clock.timed, said

    return call


def test_searched_once_then_kept(elsewhere: Path, tuned: Any, cache: Cache) -> None:
    first, timed, said = tuned()
    assert first.source == "searched" and first.config.num_stages == 4 and timed == 2
    assert said == ["searching a launch shape for this GPU, 2 of 2"]
    (file,) = elsewhere.iterdir()
    data = json.loads(file.read_text())
    assert data["key"]["k"] == "int8" and data["key"]["dims"] == [32, 32] and data["key"]["gpu"] == "unknown"
    assert data["seconds"] < data["table_seconds"]
    assert tuned() == (Launch(first.config, "kept"), 0, [])
    # Without a config decode takes the table's entry, whatever is kept.
    assert launch_config(query(cache), cache).num_stages == 3


def test_shapes_are_run_by_the_kernel(
    elsewhere: Path, tuned: Any, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the arguments that it is given: a window changes what it computes."""
    outputs: list[Tensor] = []

    def watched(q: Tensor, cache: Cache, **how: Any) -> Tensor:
        outputs.append(decode(q, cache, **how))
        return outputs[-1]

    monkeypatch.setattr(launch, "decode", watched)
    variant = Variant(window=8)
    found = tuned(variant=variant)[0]
    want = decode(query(cache), cache, variant=variant, out=torch.empty_like(outputs[0]))
    assert found.config.num_stages == 4 and len(outputs) == 4
    # Compared in fp32, timed in the dtype of the queries.
    assert {out.dtype for out in outputs} == {torch.float32, torch.float16}
    assert all(torch.allclose(out.float(), want, atol=1e-3) for out in outputs)
    assert not torch.allclose(decode(query(cache), cache).float(), want, atol=1e-2)


def test_a_wrong_shape_is_not_taken(elsewhere: Path, tuned: Any, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(q: Tensor, cache: Cache, *, config: DecodeConfig, out: Tensor, **how: Any) -> Tensor:
        return out.fill_(1.0 if config.num_stages == 3 else 1.01)

    monkeypatch.setattr(launch, "decode", faulty)
    found, timed, _ = tuned()
    assert found.source == "searched" and found.config == launch_config(query(cache), cache) and timed == 1


def test_a_gpu_of_the_table_is_never_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "is_measured", lambda _device: True)
    found, timed, _ = tuned()
    assert found.source == "table" and not timed and not list(tmp_path.iterdir())


def test_which_gpus_the_table_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "kvplan_kernels.attention.config"
    for capability, sms in (*MEASURED, (90, 114), (89, 132), (100, 148)):
        monkeypatch.setattr(f"{here}.capability_of", lambda _device, c=capability: c)
        monkeypatch.setattr(f"{here}.count_sms", lambda _device, n=sms: n)
        assert is_measured(torch.device("cuda")) == ((capability, sms) == (90, 132))
    assert is_measured(torch.device("cpu"))
    for known, source in ((True, "table"), (False, "generic")):
        monkeypatch.setattr(launch, "is_measured", lambda _device, known=known: known)
        assert launch.table_launch(BASE, torch.device("cuda")) == Launch(BASE, source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "\xff", '{"schema": "kvplan.launch/1"}', "key", "config", "schema", "unknown shape"]
)
def test_a_damaged_file_is_searched_again(elsewhere: Path, tuned: Any, damage: str) -> None:
    config = tuned()[0].config
    (file,) = elsewhere.iterdir()
    good = file.read_text()
    if damage in ("key", "config", "schema"):
        damage = json.dumps({k: v for k, v in json.loads(good).items() if k != damage})
    elif damage == "unknown shape":
        damage = good.replace('"num_warps": 1', '"num_warps": 64').replace('"num_warps": 4', '"num_warps": 64')
    assert damage != good
    file.write_bytes(damage.encode("latin-1"))
    again, timed, said = tuned()
    assert again == Launch(config, "searched") and timed == 2
    assert str(file) in said[0] and "damaged" in said[0]
    assert tuned()[0].source == "kept" and list(elsewhere.iterdir()) == [file]


def test_a_folder_that_cannot_be_written_is_said(
    elsewhere: Path, tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvplan").write_text("a file where the folder would be")
    found, _, said = tuned()
    assert found.source == "searched" and "cannot be read" in said[0] and "not kept" in said[-1]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert "no home" in tuned()[2][-1]


def test_processes_may_write_at_once(elsewhere: Path) -> None:
    """A reader finds a whole file at any time, from whichever writer."""
    tried, said = [BASE, FAST, SLOW], list[str]()

    def write(config: DecodeConfig) -> None:
        for _ in range(30):
            kept.keep({"gpu": "x"}, Found(config, 1.0, 2.0), said.append)

    write(BASE)
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, c) for c in (FAST, SLOW)]
        while not all(w.done() for w in writers):
            assert kept.read({"gpu": "x"}, tried, said.append) in tried
    assert (
        not said and kept.read({"gpu": "x"}, tried, said.append) in (FAST, SLOW) and len(list(elsewhere.iterdir())) == 1
    )


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert kept.folder() == tmp_path / ".cache" / "kvplan" / "launches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert kept.folder() == tmp_path / "x" / "kvplan" / "launches"


def test_other_kernels_forget_what_was_found(
    elsewhere: Path, tuned: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert tuned()[0].source == "searched" and tuned()[0].source == "kept"
    monkeypatch.setattr(key, "sources_hash", lambda: "another")
    assert tuned()[0].source == "searched"
    folder = tmp_path / "kernels" / "deep"
    folder.mkdir(parents=True)
    seen = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("notes.md", "2")):
        (folder / name).write_text(text)
        seen.add(hash_of(tmp_path / "kernels"))
    assert len(seen) == 3


def test_the_key_tells_apart_what_compiles_or_runs_differently(elsewhere: Path, cache: Cache) -> None:
    q = query(cache)
    cases = {
        "as it is": (q, cache, Variant()),
        "queries": (query(cache, 4), cache, Variant()),
        "dtype": (q.bfloat16(), cache, Variant()),
        "window": (q, cache, Variant(window=8)),
        "format": (q, made("int4"), Variant()),
        "page": (q, made("int8", page_size=32), Variant()),
        "requests": (query(made("int8", requests=2)), made("int8", requests=2), Variant()),
    }
    keys = [launch_key(q, c, launch_mode(q, c, v)) for q, c, v in cases.values()]
    assert len({json.dumps(k) for k in keys}) == len(cases)
    longer = cache.clone()
    longer.lengths = cache.lengths - 7
    assert launch_key(q, longer, launch_mode(q, longer)) == keys[0]
