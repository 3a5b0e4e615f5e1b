"""SGLang: pools of tokens, of windows and of state slots, shared by all requests of a rank.

Source: sglang 0.5.23 from the package index, read.
"""

from __future__ import annotations

from kvplan.engines.sglang.cache import SglangCache
from kvplan.engines.sglang.declared import OPTIONS, RULES
from kvplan.engines.sglang.formats import FORMATS, tailor
from kvplan.engines.sglang.start import LAUNCH, POOL
from kvplan.engines.shared.types import Engine, EngineVersion

ENGINE = Engine(
    name="sglang",
    title="SGLang",
    flag=("--kv-cache-dtype",),
    versions=(EngineVersion(name="0.5.23", source="sglang 0.5.23, read and its pools measured on CPU"),),
    formats=FORMATS,
    options=OPTIONS,
    rules=RULES,
    cache=SglangCache,
    page_option="page_size",
    tailor=tailor,
    pool=POOL,
    launch=LAUNCH,
)
