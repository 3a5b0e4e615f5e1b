"""How a cache is chosen in transformers: arguments of `generate`."""

from __future__ import annotations

from kvplan.engines.shared.launch import Flag, LaunchSpec

_GENERATE = "transformers 5.24.0, generation/configuration_utils.py and cache_utils.py:2162-2246"
_GROUP = 'cache_implementation="quantized", cache_config={{{inside}}}'
_NBITS = {"int8": 8, "int4": 4, "int3": 3, "int2": 2, "int1": 1}


def _config(option: str) -> str:
    backend, _, bits = option.partition("-")
    return f'"backend": "{backend}"' + (f', "nbits": {_NBITS[bits]}' if bits else "")


_OPTIONS = ("quanto-int4", "quanto-int2", "hqq-int8", "hqq-int4", "hqq-int3", "hqq-int2", "hqq-int1", "fp8")


def _part(field: str, quote: str = "") -> Flag:
    text = f'"{field}": {quote}{{value}}{quote}'
    return Flag(field=field, text=text, group=_GROUP, needs="kv", source=_GENERATE)


LAUNCH = LaunchSpec(
    command="model.generate(**inputs, ",
    language="python",
    closing=")",
    flags=(
        Flag(field="kv", text="{value}", group=_GROUP, source=_GENERATE, values={o: _config(o) for o in _OPTIONS}),
        _part("q_group_size"),
        _part("residual_length"),
        _part("axis_key"),
        _part("axis_value"),
        Flag(field="cache_implementation", text='cache_implementation="{value}"', source=_GENERATE),
        Flag(field="context", text="max_length={value}", source=_GENERATE),
    ),
    source=_GENERATE,
)
