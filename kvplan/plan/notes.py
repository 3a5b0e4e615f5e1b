"""What a plan must say in words: what it does not count, and what its figures are of."""

from __future__ import annotations

from kvplan.plan.resolve import Resolved


def plan_notes(resolved: Resolved) -> list[str]:
    """Notes in the order in which a reader needs them."""
    spec, request = resolved.spec, resolved.request
    notes = []
    if spec.mtp and not request.mtp:
        notes.append(
            f"Multi-token prediction layers ({spec.mtp.layers}) are not charged: "
            "they hold a cache only with speculative decoding."
        )
    notes += _sharding_notes(resolved)
    for group in spec.layer_groups:
        if group.kind == "cross":
            rows = group.encoder_tokens
            notes.append(f"Group {group.name} counts one {rows.per} of {rows.count:,} encoder tokens per sequence.")
    if request.context and request.context > spec.max_context:
        notes.append(f"Context {request.context:,} is above the model's maximum of {spec.max_context:,}.")
    if spec.provenance and spec.provenance.confidence == "memory":
        notes.append(f"The spec {spec.id} was written from memory and is not verified.")
    if resolved.device and resolved.engine:
        notes.append(
            "Not covered: encoder caches of images and audio, and host-memory tiers, which change no figure of the GPU."
        )
    if resolved.device and not resolved.engine:
        notes.append("Not counted yet: activations, CUDA graphs, the framework's own memory, fragmentation.")
    return notes


def _sharding_notes(resolved: Resolved) -> list[str]:
    spec, sharding = resolved.spec, resolved.sharding
    notes = []
    if sharding.pp > 1:
        span = sharding.stage_layers(spec.layers, resolved.stage)
        notes.append(
            f"Figures are of pipeline stage {resolved.stage + 1} of {sharding.pp} (layers {span[0]}-{span[-1]}), "
            "which holds most cache."
        )
        if any(g.kind == "none" and g.reads for g in spec.layer_groups):
            notes.append("A layer that reads another layer's cache from another stage would need a copy: not counted.")
    if sharding.dp > 1 and sharding.dp > resolved.request.batch:
        notes.append(f"Only {resolved.request.batch} of {sharding.dp} replicas have a sequence.")
    if sharding.dp_attention and sharding.dp > 1:
        notes.append(f"The copies of the attention weights on {sharding.dp} attention replicas are not counted.")
    if sharding.dcp > 1:
        notes.append(
            "Decode context parallel shares only the rows of growing caches; "
            "windows, states, encoder rows and index keys stay whole on every rank."
        )
    if sharding.pcp > 1 and sharding.dcp == 1:
        notes.append(f"Prefill context parallel shares work, not cache: {sharding.pcp} ranks hold the same rows.")
    return notes
