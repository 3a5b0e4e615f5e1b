"""Write kvplan/recommend/evidence.json, what `kvplan recommend` knows of quality: python tools/collect_evidence.py

K and V alone, and pairs, as docs/results/quality_smollm2.json measured them; formats of the search space that it lacks
are predicted from the captured tensors that ship with kvplan. `study` is typed from the project's first study of the
same model and text, for formats without a codec here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
REPORT = Path("docs/results/quality_smollm2.json")
STUDY = {
    # Mean KL with only K, only V stored; 2,048 tokens, 2026-11-30. Of turboquant_* the K side is the study's 4 and 3
    # bit codebooks, the V side its plain 4 bit and its 3-bit codebook.
    "k": {"q5_1": 0.0111, "q4_0": 0.0977, "turboquant_k8v4": 0.0117, "turboquant_4bit_nc": 0.0575,
          "turboquant_k3v4_nc": 0.2277, "turboquant_3bit_nc": 0.2277},
    "v": {"q5_1": 0.00099, "q4_0": 0.00651, "turboquant_k8v4": 0.00727, "turboquant_4bit_nc": 0.00727,
          "turboquant_k3v4_nc": 0.00727, "turboquant_3bit_nc": 0.0267},
}  # fmt: skip


def measured() -> dict[str, Any]:
    """What the report has."""
    report = json.loads((REPO / REPORT).read_text(encoding="utf-8"))
    found: dict[str, dict[str, float]] = {"k": {}, "v": {}}
    for f in report["formats"]:
        for role in ("k", "v"):
            part = f[f"{role}_only"]
            if part is not None:
                found[role].setdefault(f[role], round(part["kl_mean"], 6))
    pairs = [[f["k"], f["v"], round(f["kl_mean"], 6), round(f["top1"], 4)] for f in report["formats"]]
    text = report["request"]["text"]
    source = f"SmolLM2-135M, {text['tokens']:,} tokens of {text['name']} ({REPORT.as_posix()})"
    return {"source": source, "measured": found, "pairs": pairs, "study": STUDY}


def predicted(known: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The rest of the search space, from tensors."""
    import torch

    from kvplan.captured import SHIPPED, read_capture
    from kvplan.formats.grammar import parse_any
    from kvplan.quality.law import KL_OF_K, KL_OF_V
    from kvplan.quality.tensors import TensorErrors
    from kvplan.recommend.space import K_FORMATS, LOW_K, LOW_V, V_FORMATS

    file = read_capture(SHIPPED)
    errors = TensorErrors(file)
    found: dict[str, dict[str, float]] = {"k": {}, "v": {}}
    with torch.inference_mode():
        for role, formats, factor in (("k", (*K_FORMATS, *LOW_K), KL_OF_K), ("v", (*V_FORMATS, *LOW_V), KL_OF_V)):
            for spelling in (parse_any(f).spelling for f in formats):
                if spelling not in known[role]:
                    found[role][spelling] = round(factor * errors.error(role, spelling) ** 2, 6)
    return {"tensors": f"predicted from captured tensors of {file.source}", "predicted": found}


def main() -> None:
    data = measured()
    data |= predicted(data["measured"])
    path = REPO / "kvplan" / "recommend" / "evidence.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
