"""How ranks share a cache: what each of them holds, and which pipeline stage has which layers.

The rules follow vLLM and SGLang where those agree; where only one of them says something, it is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.units import cdiv


@dataclass(frozen=True, slots=True)
class Sharding:
    """A layout of GPUs.

    Attributes:
        tp: tensor-parallel ranks: KV heads are split, then copied; latents and index keys are copied to every rank.
        pp: pipeline stages: each holds the caches of its own layers.
        dp: replicas, each with its own requests. With `dp_attention` they lie inside the tensor-parallel group.
        dcp: decode context parallel: this many of the ranks that would hold copies share rows instead, interleaved
            row by row. It takes no further GPUs.
        pcp: prefill context parallel: this many times the GPUs, which split the work of a prefill, not its cache:
            each holds a copy, unless dcp spans them.
        dp_attention: attention runs on tp / dp ranks, so that requests instead of heads are split.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp_attention: bool = False

    @classmethod
    def of(cls, value: Sharding | int) -> Sharding:
        """A sharding as it is, or plain tensor parallelism of that many ranks."""
        return value if isinstance(value, Sharding) else cls(value)

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one request's layer."""
        return self.tp // self.dp if self.dp_attention else self.tp

    @property
    def holders(self) -> int:
        """Ranks of one stage that hold something of the same request."""
        return self.attention_tp * self.pcp

    @property
    def gpus(self) -> int:
        """GPUs of the whole layout."""
        return self.tp * self.pp * self.pcp * (1 if self.dp_attention else self.dp)

    def sequences(self, batch: int) -> int:
        """Sequences of the fullest replica."""
        return cdiv(batch, self.dp)

    def stage_layers(self, layers: int, stage: int) -> range:
        """Indices of one stage's layers.

        Layers that do not divide go to the stages before the last, from its neighbour backwards (vLLM's rule: 61 over
        4 gives 15, 15, 16, 15), because the last stage also has the output head.
        """
        each, more = divmod(layers, self.pp)
        counts = [each + (self.pp - 1 - more <= s < self.pp - 1) for s in range(self.pp)]
        start = sum(counts[:stage])
        return range(start, start + counts[stage])


def spell_layers(indices: tuple[int, ...], most: int = 4) -> str:
    """`0-1,30-31`: layer indices as ranges; after `most` ranges the rest is only counted."""
    ranges: list[list[int]] = []
    for i in indices:
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    texts = [f"{a}" if a == b else f"{a}-{b}" for a, b in ranges]
    if len(texts) <= most:
        return ",".join(texts)
    rest = len(indices) - sum(b - a + 1 for a, b in ranges[: most - 1])
    return ",".join(texts[: most - 1]) + f" and {rest} more"
