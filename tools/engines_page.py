"""Write docs/engines.md: what kvplan knows of each engine, from the engines' own declarations.

python tools/engines_page.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvplan.engines import engine_names, load_engine
from kvplan.engines.shared.describe import describe

PAGE = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
HEAD = """# Engines

<!-- Written by tools/engines_page.py; do not edit. -->

`kvplan estimate MODEL --engine NAME [--engine-version V] [--engine-option NAME=VALUE]` computes what an engine's
allocator takes, beside what the mathematics needs, and names the difference. The first version and the first format
are the defaults. How well this agrees with the engines themselves stands in [accuracy.md](accuracy.md); how to add an
engine in [add_an_engine.md](add_an_engine.md). `native` is the model's own dtype.
"""


def page() -> str:
    """The page as Markdown."""
    engines = [describe(load_engine(name)) for name in engine_names()]
    lines = [HEAD, "| engine | name | versions | page size set by |", "|---|---|---|---|"]
    for e in engines:
        versions = ", ".join(v["name"] for v in e["versions"])
        option = f"`{e['page_option']}`" if e["page_option"] else ""
        lines.append(f"| {e['title']} | [`{e['name']}`](#{e['name']}) | {versions} | {option} |")
    for e in engines:
        lines += _engine(e)
    return "\n".join(lines) + "\n"


def _engine(e: dict[str, Any]) -> list[str]:
    lines = ["", f"## {e['name']}", ""]
    for v in e["versions"]:
        lines.append(f"- {e['title']} {v['name']}" + (f": {_text(v['note'])}" if v["note"] else "") + _source(v))
    together = "K and V apart" if e["k_and_v_apart"] else "K and V together"
    lines += ["", f"Cache formats ({', '.join(f'`{flag}`' for flag in e['flag'])}; {together}):", ""]
    lines += ["| format | stores | needs | source |", "|---|---|---|---|"]
    for f in e["formats"]:
        names = ", ".join(f"`{name}`" for name in (f["option"], *f["aliases"]))
        stores = ", ".join(f"{role} `{spelling}`" for role, spelling in f["stores"].items())
        lines.append(f"| {names} | {stores} | {_text(_needs(f))} | {_text(f['source'])} |")
    if e["options"]:
        lines += ["", "| option | kind | default | meaning | source |", "|---|---|---|---|---|"]
    for o in e["options"]:
        kind = ", ".join(o["choices"]) or o["kind"]
        default = "worked out" if o["default"] is None else str(o["default"]).lower()
        lines.append(f"| `{o['name']}` | {kind} | {default} | {_text(o['text'])} | {_text(o['source'])} |")
    lines += ["", "Rules:", ""]
    lines += [f"- **{r['name']}**: {_text(r['text'])}{_source(r)}" for r in e["rules"]]
    return lines


def _needs(f: dict[str, Any]) -> str:
    spans = [f"compute capability {a}" + (f" to {b}" if a != b else "") for a, b in f["compute_capabilities"]]
    versions = [f"{word} {f[word]}" for word in ("since", "until") if f[word]]
    return "; ".join([*versions, *([" or ".join(spans)] if spans else []), *([f["needs"]] if f["needs"] else [])])


def _source(entry: dict[str, Any]) -> str:
    return f" ({_text(entry['source'])})" if entry["source"] else ""


def _text(text: str) -> str:
    """Plain words inside Markdown and its tables."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def main() -> int:
    """Write the page, or with --check only compare it."""
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
