"""An engine as plain data: what `kvplan engines` prints and the documentation page is made from."""

from __future__ import annotations

from typing import Any

from kvplan.engines.shared.types import Engine, EngineFormat, EngineOption


def describe(engine: Engine) -> dict[str, Any]:
    """Versions, formats, options and rules, each with its source, as built-in types."""
    return {
        "name": engine.name,
        "title": engine.title,
        "flag": list(engine.flag),
        "default_version": engine.versions[0].name,
        "default_format": engine.formats[0].option,
        "k_and_v_apart": engine.apart,
        "page_option": engine.page_option,
        "versions": [{"name": v.name, "note": v.note, "source": v.source} for v in engine.versions],
        "formats": [_format(f) for f in engine.formats],
        "options": [_option(o) for o in engine.options],
        "rules": [{"name": r.name, "text": r.text, "source": r.source} for r in engine.rules],
    }


def _format(f: EngineFormat) -> dict[str, Any]:
    return {
        "option": f.option,
        "aliases": list(f.aliases),
        "stores": {role: spelling for role in ("k", "v", "latent", "index") if (spelling := getattr(f, role))},
        "bytes_at_head_dim_128": f.nbytes,
        "of_tokens": f.tokens,
        "needs": f.needs,
        "since": f.since,
        "until": f.until,
        "compute_capabilities": [[f"{a}.{b}" for a, b in ends] for ends in f.capabilities],
        "source": f.source,
    }


def _option(o: EngineOption) -> dict[str, Any]:
    return {
        "name": o.name,
        "kind": o.kind.__name__,
        "default": o.default,
        "choices": list(o.choices),
        "text": o.text,
        "source": o.source,
    }
