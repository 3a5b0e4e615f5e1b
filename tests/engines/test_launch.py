"""Launch commands: only options that exist, the cache dtype as planned, and none for a format that an engine lacks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvplan.engines import engine_names, load_engine
from kvplan.errors import KvplanError, UnsupportedError, UsageError
from kvplan.plan import Plan, PlanRequest, make_plan

# The options by which each engine's users choose the cache, as the project's collection of facts lists them.
CACHE_OPTIONS = {
    "vllm": ("--kv-cache-dtype", "--gpu-memory-utilization", "--block-size"),
    "sglang": ("--kv-cache-dtype", "--mem-fraction-static", "--disable-hybrid-swa-memory"),
    "llamacpp": ("--cache-type-k", "--cache-type-v", "--swa-full"),
    "ollama": ("OLLAMA_KV_CACHE_TYPE", "OLLAMA_NUM_PARALLEL", "OLLAMA_CONTEXT_LENGTH", "OLLAMA_FLASH_ATTENTION"),
    "trtllm": ("free_gpu_memory_fraction", "tokens_per_block", "max_attention_window", "mamba_ssm_cache_dtype"),
    "lmdeploy-turbomind": ("--quant-policy", "--cache-max-entry-count", "--cache-block-seq-len"),
    "lmdeploy-pytorch": ("--quant-policy", "--cache-max-entry-count", "--cache-block-seq-len"),
    "transformers": ("cache_implementation", "cache_config", "q_group_size", "residual_length"),
    "mlx": ("--kv-bits", "--kv-group-size", "--quantized-kv-start", "--max-kv-size"),
    "exllamav3": ("-cs", "-cq"),
    "openvino": ("KEY_CACHE_QUANT_MODE", "EXECUTION_MODE_HINT"),
    "tgi": ("--kv-cache-dtype",),
}
STARTED = tuple(name for name in engine_names() if load_engine(name).launch is not None)
FORBIDDEN = ("calculate-kv-scales", "calculate_kv_scales", "quantization-param-path")


def plan(engine: str, **fields: object) -> Plan:
    base = {"model": "llama-3.1-8b", "context": 8192, "batch": 4, "gpu": "h100-80gb", "engine": engine}
    return make_plan(PlanRequest.model_validate(base | fields))


def flags(engine: str) -> str:
    launch = load_engine(engine).launch
    assert launch is not None
    return " ".join(text for flag in launch.flags for text in (flag.text, flag.group, flag.off))


def test_every_engine_of_the_facts_is_started() -> None:
    assert set(STARTED) >= set(CACHE_OPTIONS) & set(engine_names())


@pytest.mark.parametrize("engine", [name for name in CACHE_OPTIONS if name in engine_names()])
def test_the_options_of_the_facts_are_known(engine: str) -> None:
    for option in CACHE_OPTIONS[engine]:
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", flags(engine)), option


@pytest.mark.parametrize("engine", [name for name in CACHE_OPTIONS if name in engine_names()])
def test_the_facts_do_list_them(engine: str, shared: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (shared / "facts").glob("engines_*.md"))
    written = text.replace("-ctk/--cache-type-k", "--cache-type-k --cache-type-v")
    for option in CACHE_OPTIONS[engine]:
        word = option.lstrip("-").replace("-", "[-_]")
        assert re.search(word, written), option


@pytest.mark.parametrize("engine", STARTED)
def test_nothing_that_is_gone_or_ruins_scales(engine: str) -> None:
    assert not any(word in flags(engine) for word in FORBIDDEN)
    launch = load_engine(engine).launch
    assert launch is not None and all(flag.source for flag in launch.flags)


@pytest.mark.parametrize("engine", STARTED)
def test_the_command_says_the_planned_format_and_lengths(engine: str) -> None:
    made = load_engine(engine)
    seen = set()
    for f in made.formats:
        asked = {"k": f.option, "v": f.option} if made.apart and f.v else {"kv": f.option}
        try:
            summary = plan(engine, **asked).engine
        except (UsageError, UnsupportedError):
            continue
        assert summary is not None
        if summary.launch is None:
            assert not f.launchable
            continue
        text = summary.launch.text
        assert "{" not in text.replace("cache_config={", "") and "None" not in text
        seen.add(text)
        if f is not made.formats[0] and engine != "transformers":
            words = re.split(r"[^\w.-]+", text)
            assert f.option in words, text
        if summary.launch.language == "shell":
            assert shlex.split(text)
    assert len(seen) > 1


def test_a_format_that_an_engine_lacks_gives_no_command() -> None:
    for engine in STARTED:
        for wanted in ("kivi2", "int3:channel/32,asym"):
            with pytest.raises(KvplanError) as caught:
                plan(engine, kv=wanted)
            assert load_engine(engine).title in caught.value.message or "no " in caught.value.message
            assert any(f.option in caught.value.hint for f in load_engine(engine).formats) or "plan without" in (
                caught.value.hint
            )


def test_commands_by_hand() -> None:
    hand = {
        "llamacpp": "llama-server -m model.gguf -c 32768 -np 4 --cache-type-k q8_0 --cache-type-v q4_0",
        "ollama": "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=4 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
        "exllamav3": "python examples/chat.py -m meta-llama/Llama-3.1-8B-Instruct -cs 32768 -cq 8,4",
        "transformers": 'model.generate(**inputs, max_length=8192, cache_implementation="quantized", '
        'cache_config={"backend": "quanto", "nbits": 4, "q_group_size": 32})',
    }
    asked: dict[str, dict[str, object]] = {
        "llamacpp": {"k": "q8_0", "v": "q4_0"},
        "ollama": {"kv": "q8_0"},
        "exllamav3": {"k": "8", "v": "4"},
        "transformers": {"kv": "quanto-int4", "engine_options": ("q_group_size=32",)},
    }
    for engine, text in hand.items():
        summary = plan(engine, **asked[engine]).engine
        assert summary is not None and summary.launch is not None
        assert summary.launch.text == text
