"""Reading logs: every figure, whatever the log went through; no log, no figure."""

from __future__ import annotations

import importlib.util
import json
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.reconcile.llamacpp import CACHES
from kvplan.reconcile.read import FORMATS
from kvplan.reconcile.run import read_log
from kvplan.reconcile.types import StartUp, total

_spec = importlib.util.spec_from_file_location("written_logs", Path(__file__).with_name("written.py"))
assert _spec and _spec.loader
written = importlib.util.module_from_spec(_spec)
sys.modules["written_logs"] = written
_spec.loader.exec_module(written)

every = pytest.mark.parametrize("log", written.ALL, ids=lambda log: f"{log.engine}: {log.name}")


@pytest.fixture
def read(tmp_path: Path):
    def reads(text: str | bytes) -> StartUp:
        path = tmp_path / "server.log"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_log(path)

    return reads


def check(start: StartUp, log: written.Written, rank: str | None = None) -> None:
    """Every figure that was written is read."""
    assert (start.engine, start.version, start.model) == (log.engine, log.version, log.model)
    of_rank = [p for p in start.printed if rank in (None, p.rank)]
    for (name, of), value in log.figures.items():
        found = [p for p in of_rank if p.name == name and p.of == of]
        assert found and str(found[-1].value) == value, (name, of, found)
    for key, value in log.options.items():
        assert start.option(key) == value


def test_five_logs_of_each_engine() -> None:
    for log in FORMATS:
        assert sum(w.engine == log.engine for w in written.ALL) >= 5, log.engine


@every
def test_figures(log: written.Written, read) -> None:
    start = read("\n".join(written.lines_of(log)) + "\n")
    check(start, log)
    assert start.restarts == 0 and not start.notes


@every
def test_colours_and_wrappers(log: written.Written, read) -> None:
    """Terminal codes, as bytes and as text; containers, journals, Windows line ends, byte order marks."""
    plain = written.lines_of(log)
    coloured = [f"\x1b[1;36m{line[:9]}\x1b[0;0m{line[9:]}\x1b[K" for line in plain]
    check(read("\r\n".join(coloured)), log)
    check(read("\n".join(f"#033[1;36m{line}#033[0m" for line in plain)), log)
    check(read("\n".join(f"Sep 11 00:42:49 box engine[31]: {line}" for line in plain)), log)
    check(read("\n".join(f"model-1  | {line}" for line in plain)), log)
    check(read("\n".join(f"2026-01-02T03:04:05.678901234Z stdout F {line}" for line in plain)), log)
    check(read("\n".join(json.dumps({"log": line + "\n", "stream": "stderr"}) for line in coloured)), log)
    check(read("\n".join(plain).encode("utf-16")), log)
    check(read("\n".join(plain).encode("utf-16-le")), log)
    check(read("\n".join(plain).encode("utf-8-sig")), log)


@every
def test_progress_bars_and_stray_bytes(log: written.Written, read) -> None:
    bars = "Loading:  10%\rLoading:  90%\rLoading: 100%\r"
    check(
        read(b"\xff\xfe bytes\n"[2:] + "\n".join(bars + line for line in written.lines_of(log)).encode() + b"\n\xe9"),
        log,
    )


@pytest.mark.parametrize("log", [w for w in written.ALL if w.ranked], ids=lambda log: f"{log.engine}: {log.name}")
def test_interleaved_ranks(log: written.Written, read) -> None:
    """Every rank keeps its figures, whoever prints first."""
    ranks = [written.lines_of(log, rank) for rank in (0, 1)]
    woven = [line for pair in zip(*ranks, strict=True) for line in (pair if len(pair[0]) % 2 else pair[::-1])]
    start = read("\n".join(woven))
    assert start.restarts == 0
    assert len([rank for rank in start.ranks if rank]) == 2, start.ranks
    for rank in start.ranks:
        if rank:
            check(start, log, rank)


def starts(log: written.Written) -> bool:
    """Whether a line of the log says that an engine starts."""
    rules = next(each.rules for each in FORMATS if each.engine == log.engine)
    return any(rule.effect in ("start", "model") and rule.hint in line for rule in rules for line in log.lines)


@pytest.mark.parametrize("log", list(filter(starts, written.ALL)), ids=lambda log: f"{log.engine}: {log.name}")
def test_restart(log: written.Written, read) -> None:
    """The last complete start counts, and the log's others are said."""
    lines = written.lines_of(log)
    older = [line.replace("7", "3") for line in lines]
    start = read("\n".join([*older, *lines]))
    check(start, log)
    assert start.restarts == 1 and "2 starts" in start.notes[0]
    # The second start was cut before its cache: the first one counts.
    first = next(i for i, line in enumerate(lines) if any(part in line for part in log.capacity))
    cut = read("\n".join([*lines, *older[:first]]))
    assert [str(p.value) for p in cut.printed] == [str(p.value) for p in read("\n".join(lines)).printed]


@every
def test_truncation(log: written.Written, read) -> None:
    """Without its last lines a log gives what is left; without capacity lines it is refused, naming them."""
    lines = written.lines_of(log)
    whole = read("\n".join(lines))
    last = max(i for i, line in enumerate(lines) if any(part in line for part in log.capacity))
    kept = lines[:last]
    if any(part in line for line in kept for part in log.capacity):
        start = read("\n".join(kept))
        assert {(p.name, p.value) for p in start.printed} < {(p.name, p.value) for p in whole.printed}
    bare = [line for line in lines if not any(part in line for part in log.capacity)]
    with pytest.raises(InputError) as error:
        read("\n".join(bare) or "nothing")
    assert "looked for" in error.value.hint


def test_missing_lines_are_named(read) -> None:
    log = written.VLLM[0]
    start = read("\n".join(line for line in log.lines if "cache size" not in line and "loading took" not in line))
    assert start.missing == ("GPU KV cache size: N tokens", "Model loading took X GiB")


def test_a_cut_number_is_said(read) -> None:
    """The file ends inside a line: behind its last digit more may have followed; other figures need what follows."""
    assert "may be cut" in read("[BlockManager] block_size = 8.000 MB\n[BlockManager] max_block_count = 62").notes[0]
    assert not read("[BlockManager] block_size = 8.000 MB\n[BlockManager] max_block_count = 62\n").notes
    start = read("Available KV cache memory: 11.06 GiB\nGPU KV cache size: 72,4")
    assert not start.all("tokens") and "GPU KV cache size: N tokens" in start.missing


def test_minimum_decides(read) -> None:
    """V19: one rank has less memory than the one whose line is quoted."""
    lines = [f"(Worker_TP{rank} pid=4{rank}) INFO [gpu_worker.py:298] Available KV cache memory: {gib} GiB"
             for rank, gib in enumerate(("8.11", "8.02", "8.11", "8.10"))]  # fmt: skip
    start = read("\n".join(lines))
    least = start.least("available")
    assert least is not None and (least.rank, least.value) == ("TP1", Decimal("8.02"))


def test_workers_without_rank_numbers_get_their_own(read) -> None:
    """Processes that only tell an id are counted; the ids are not kept."""
    lines = [f"(VllmWorkerProcess pid={pid}) INFO worker.py:1] the rest of the memory reserved for KV Cache is {gib}GiB"
             for pid, gib in ((4711, "3.50"), (4712, "3.40"))]  # fmt: skip
    start = read("\n".join(lines))
    assert start.ranks == ("worker 1", "worker 2") and "471" not in repr(start)


def test_half_units(read) -> None:
    """Trailing zeros that the engine drops still count as decimals; whole counts are exact."""
    start = read("Available KV cache memory: 11.0 GiB\nGPU KV cache size: 72,064 tokens")
    assert [(str(p.value), str(p.half_unit)) for p in start.printed] == [("11.0", "0.005"), ("72064", "0")]


def test_two_engines_and_none(read) -> None:
    both = "\n".join([*written.VLLM[0].lines, *written.lines_of(written.SGLANG[0])])
    with pytest.raises(InputError, match="vLLM and SGLang"):
        read(both)
    with pytest.raises(InputError, match=r"vLLM, SGLang, llama\.cpp, TensorRT-LLM, LMDeploy, Ollama"):
        read("nginx started\n")
    with pytest.raises(InputError, match="no start-up line"):
        read("")


@pytest.mark.parametrize(
    "data", [b"\x1f\x8b\x08\x00" + bytes(range(256)) * 9, bytes(range(256)) * 20, b"\x89PNG\r\n\x1a\n\0\0"]
)
def test_no_text(data: bytes, read) -> None:
    with pytest.raises(InputError, match="no text file"):
        read(data)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.log"):
        with pytest.raises(InputError, match="cannot be read"):
            read_log(path)


def test_draft_of_llama_cpp(read) -> None:
    """A draft model's cache is not the target's."""
    target, draft = written.LLAMA_CPP[2], written.LLAMA_CPP[3]
    lines = [*target.lines, "srv    load_model: loading draft model '/home/x/d.gguf'", *draft.lines[2:]]
    start = read("\n".join(lines))
    check(start, target, rank="")
    assert start.restarts == 0 and {p.rank for p in start.all("kv_self", "k")} == {"", "draft"}


def test_long_lines_and_long_logs(tmp_path: Path) -> None:
    """A line without an end and a log of many lines are read as a stream."""
    path = tmp_path / "long.log"
    path.write_text("x" * 5_000_000 + "\n" + "request served\n" * 100_000 + "\n".join(written.VLLM[0].lines))
    check(read_log(path), written.VLLM[0])


def test_every_golden_log_of_llama_cpp(shared: Path, tmp_path: Path) -> None:
    """The parts that the engine prints sum to what it allocated, within their rounding."""
    records = json.loads((shared / "data/llamacpp_golden.json").read_text())["records"]
    path = tmp_path / "llama.log"
    good = [r for r in records if r["ok"]]
    assert len(good) > 500
    for record in good:
        path.write_text("\n".join(record["log"]))
        start = read_log(path)
        mib, half = total(start.all(*CACHES))
        assert start.engine == "llamacpp" and not start.restarts
        assert abs(mib * 2**20 - record["total_bytes"]) <= half * 2**20, record["model"]
