"""How ExLlamaV3's example chat is started, and what a GPU leaves for the cache."""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.shared.launch import Flag, LaunchSpec
from kvplan.engines.shared.memory import PoolRule, rest_without_graphs

_EXAMPLES = "exllamav3 1.6.5, model_init.py (-cs, -cq) and examples/chat.py"


POOL = PoolRule(
    share_name="",
    default_share=lambda _version, _total, _ranks: Fraction(1),
    busiest=lambda _started: (16, 2048),
    pool=rest_without_graphs,
    text="The whole GPU, less framework, weights and activations: the cache has the size that is asked for.",
    source="exllamav3 1.6.5, cache/*.py",
)
LAUNCH = LaunchSpec(
    command="python examples/chat.py -m {model}",
    flags=(
        Flag(field="total_context", text="-cs {value}", source=_EXAMPLES),
        Flag(field="pair", text="-cq {value}", source=_EXAMPLES),
    ),
    source=_EXAMPLES,
)
