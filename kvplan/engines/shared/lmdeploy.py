"""What both engines of LMDeploy share: the command, and the share of free memory."""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import GpuMemory, PoolRule

_CLI = "LMDeploy 0.18.0, cli/utils.py and documentation of lmdeploy serve api_server"
_SHARE = "cache_max_entry_count"


def _turbomind(memory: GpuMemory) -> int:
    return int((memory.total - memory.framework - memory.weights) * memory.share)


def _pytorch(memory: GpuMemory) -> int:
    """The engine sets aside 2 bytes of logits for each token of a prefill and twice for each request."""
    requests = memory.options.get("max_batch_size") or 128
    runtime = (memory.options["max_prefill_token_num"] + 2 * requests) * memory.vocab_size * 2
    return int((memory.total - memory.framework - memory.weights - runtime) * memory.share)


def _default(_version: str, _total: int, _ranks: int) -> Fraction:
    return Fraction(8, 10)


TURBOMIND_POOL = PoolRule(
    share_name=_SHARE,
    default_share=_default,
    busiest=lambda _started: (128, 8192),
    pool=_turbomind,
    text="The share of what is free after the weights are loaded; the least over ranks.",
    source="LMDeploy git 1263d5c, src/turbomind/turbomind.cc:293-306",
)
PYTORCH_POOL = PoolRule(
    share_name=_SHARE,
    default_share=_default,
    busiest=lambda started: (started.options["max_batch_size"] or 128, started.options["max_prefill_token_num"]),
    pool=_pytorch,
    text="The share of what is free after weights and (max_prefill_token_num + 2 x max_batch_size) x vocabulary x 2.",
    source="LMDeploy 0.18.0, pytorch/engine/executor/base.py:219-240",
)


def launch(backend: str, block_option: str) -> LaunchSpec:
    """The server's command for one of the engines; `block_option` is its own name of the tokens per block."""
    fields = {
        "context": "--session-len {value}",
        "batch": "--max-batch-size {value}",
        "tp": "--tp {value}",
        "dp": "--dp {value}",
        "share": "--cache-max-entry-count {value}",
        "kv": "--quant-policy {value}",
        block_option: "--cache-block-seq-len {value}",
    }
    if backend == "pytorch":
        fields["max_prefill_token_num"] = "--max-prefill-token-num {value}"
    flags = tuple(Flag(field=name, text=text, source=_CLI) for name, text in fields.items())
    command = "lmdeploy serve api_server {model} --backend " + backend
    return LaunchSpec(command=command, flags=flags, source=_CLI)
