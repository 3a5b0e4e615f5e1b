"""vLLM: one pool of blocks for all layers; layers of one kind share block tables in page groups.

`versions` says what differs between versions, `formats` and `backends` which cache dtype exists where, `layers` how a
model's cache groups become vLLM's layer specs, `groups` and `pool` how those share blocks, `cache` the parts.
"""

from __future__ import annotations

from kvplan.engines.shared.types import Engine
from kvplan.engines.vllm.cache import cache
from kvplan.engines.vllm.formats import FORMATS, tailor
from kvplan.engines.vllm.options import OPTIONS
from kvplan.engines.vllm.rules import RULES
from kvplan.engines.vllm.start import LAUNCH, POOL
from kvplan.engines.vllm.versions import VERSIONS

ENGINE = Engine(
    name="vllm",
    title="vLLM",
    flag=("--kv-cache-dtype",),
    versions=VERSIONS,
    formats=FORMATS,
    options=OPTIONS,
    rules=RULES,
    cache=cache,
    page_option="block_size",
    tailor=tailor,
    pool=POOL,
    launch=LAUNCH,
)
