"""The longest context of a config, and its number type."""

from __future__ import annotations

from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import TOKENS, Figure

CONTEXT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "n_ctx",
    "context_length",
)
UNSTATED = 2**20
DTYPES = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "float": "float32",
    "half": "float16",
}


def max_context(cfg: Fields) -> Figure:
    """The longest context that the config allows; assumed where it states none."""

    def unstated() -> Figure:
        return Figure(UNSTATED, "assumed", "the config states no longest context")

    found = cfg.whole(*CONTEXT_NAMES, high=TOKENS, null=unstated, absent=unstated)
    scaling = cfg.data.get("rope_scaling") or cfg.data.get("rope_parameters")
    if found.how != "read" or not isinstance(scaling, dict):
        return found
    # Only YaRN's factor counts from the original length; llama3 and longrope files state the final one.
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    yarn = "yarn" in (scaling.get("rope_type"), scaling.get("type"))
    if not yarn or type(original) is not int or isinstance(factor, bool) or not isinstance(factor, int | float):
        return found
    if not 1 <= factor <= 10**6 or not 0 < original <= TOKENS:
        return found
    stretched = min(int(factor * original), TOKENS)
    if stretched <= found:
        return found
    return Figure(stretched, "read", f"{cfg.prefix}rope_scaling: factor x original_max_position_embeddings")


def native_dtype(cfg: Fields) -> tuple[str, bool, str]:
    """(number type, whether the file says so, where)."""
    for data, where in ((cfg.data, cfg.prefix), (cfg.top, "")):
        for name in ("dtype", "torch_dtype"):
            value = data.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                cfg.refuse(name, "expected the name of a number type, such as bfloat16")
            short = value.removeprefix("torch.")
            if short in DTYPES:
                return DTYPES[short], True, where + name
            cfg.note(f"{name} is {value[:40]!r}, which is no 16- or 32-bit type; bfloat16 assumed.")
    return "bfloat16", False, "the config states no 16- or 32-bit type"
