"""How llama-server is started, and what a GPU leaves for its caches."""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import PoolRule, Started, rest_without_graphs

_ARGUMENTS = "llama.cpp b11434, tools/server/README.md and common/arg.cpp"


def _busiest(started: Started) -> tuple[int, int]:
    """A batch's logits are 4 bytes each, about a tenth of what a sampling server holds at its peak."""
    batch = started.options.get("n_ubatch") or started.options.get("num_batch") or 512
    return max(batch // 10, 1), batch


POOL = PoolRule(
    share_name="",
    default_share=lambda _version, _total, _ranks: Fraction(1),
    busiest=_busiest,
    pool=rest_without_graphs,
    text="The whole GPU, less framework, weights and compute buffers; --fit would also keep 1 GiB free.",
    source="llama.cpp b11434, common/common.h:483-486",
)


def _flag(field: str, text: str, off: str = "") -> Flag:
    return Flag(field=field, text=text, off=off, source=_ARGUMENTS)


LAUNCH = LaunchSpec(
    command="llama-server -m {model}",
    flags=(
        _flag("total_context", "-c {value}"),
        _flag("batch", "-np {value}"),
        _flag("k", "--cache-type-k {value}"),
        _flag("v", "--cache-type-v {value}"),
        _flag("kv_unified", "--kv-unified"),
        _flag("n_ubatch", "-ub {value}"),
        _flag("swa_full", "--swa-full"),
        _flag("flash_attn", "-fa {value}"),
        _flag("no_kv_offload", "--no-kv-offload"),
        _flag("pp", "--split-mode layer"),
    ),
    file="model.gguf",
    source=_ARGUMENTS,
)
