"""Write docs/accuracy.md: kvplan's exact bytes beside figures worked out by hand and what other planners answer.

python tools/accuracy_page.py [--check]

kvplan's figures are computed while the page is written. The hand figures and the peers' answers are typed in from the
project's comparison of 2026-11-30. A row that kvplan refuses or gets wrong ends the program with exit code 1.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import KvplanError
from kvplan.plan import PlanRequest, make_plan
from kvplan.units import GIB

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, ENGINES = DOCS / "accuracy.md", DOCS / "results" / "engine_accuracy.json"
LOG_COLUMNS = ("logs", "independent", "independent_reproduced", "independent_explained", "independent_different",
               "reproduced")  # fmt: skip
T = 32_768
INDEX = "fp8_e4m3:token,scale=fp32"


@dataclass(frozen=True)
class Case:
    """One figure: how it is worked out by hand, its bytes, kvplan's options, and the peers' answers."""

    name: str
    by_hand: str
    nbytes: int
    request: dict[str, Any]
    peers: tuple[str, ...]


PEERS = (
    "kvfit", "hfit", "llmfit", "aiconfigurator", "llm-mem-planner", "hf-mem", "vllm-wizard", "hf-vram-calc",
    "modelinfo", "llm-mem", "fitcheck", "vramcalc, servcalc", "llm-plan",
)  # fmt: skip
NO_TP = "no TP"
R = "refused"
MODELS = (
    Case("Llama-3.1-8B", "2 x 32 layers x 8 heads x 128 x 2 bytes x T", 131_072 * T, {"model": "llama-3.1-8b"},
         ("0", "0", "0", "0", R, "0", "0", "0", "0", "0", "0", "0", "+300%")),
    Case("Llama-3.1-70B", "2 x 80 layers x 8 heads x 128 x 2 bytes x T", 327_680 * T, {"model": "llama-3.1-70b"},
         ("0", "0", "0", "0", R, "0", "0", "0", "0", "0", "0", "0", "+700%")),
    Case("Llama-3.1-70B, TP 16, per GPU", "2 x 80 layers x max(1, 8 / 16) heads x 128 x 2 bytes x T", 40_960 * T,
         {"model": "llama-3.1-70b", "tp": 16},
         ("0", NO_TP, NO_TP, "0", R, NO_TP, "+700%", "no KV per GPU", "not run", NO_TP, NO_TP, NO_TP, NO_TP)),
    Case("Mistral-7B-v0.1", "131,072 bytes x min(T, 4,096)", 536_870_912, {"model": "mistral-7b-v0.1"},
         ("0", "0", "+700%", "+700%", R, "+700%", "+700%", "+700%", "+700%", "+699%", "+700%", "+700%", "+3100%")),
    Case("DeepSeek-V3", "61 layers x (512 + 64) x 2 bytes x T", 70_272 * T, {"model": "deepseek-v3"},
         ("0", "0", "+2389%", "0", "0", "+2389%", "+2389%", "+2389%", "+2389%", "+2389%", R, R, "+2388%")),
    Case("DeepSeek-V3.2", "61 layers x (1,152 + index 132) bytes x T", 78_324 * T,
         {"model": "deepseek-v3.2", "index": INDEX},
         ("+10%", "-10%", "+2133%", "-2% (at fp8)", "0", "+2133%", "+2133%", "+2133%", "+2133%", "+2133%", R, R,
          "+2132%")),
    Case("Gemma-3-27B", "8,192 bytes x (10 layers x T + 52 layers x 1,024), 2 x 16 heads x 128 x 2 bytes",
         3_120_562_176, {"model": "gemma-3-27b"},
         ("-83%", "-83%", "+433%", R, R, "+433%", R, "+600%", "-100%", "+31%", R, R, "crash")),
    Case("Qwen3-Next-80B", "12 layers x 2,048 bytes x T + 36 x (32 x 128 x 128 x 4 + 8,192 x 3 x 2) bytes of states",
         882_573_312, {"model": "qwen3-next-80b-a3b"},
         ("0", "-9%", "-3%", "+265%", R, "+265%", "+82%", "+82%", "+82%", "+82%", R, R, "+1360%")),
    Case("gpt-oss-120b", "2,048 bytes x (18 layers x T + 18 layers x 128)", 1_212_678_144, {"model": "gpt-oss-120b"},
         ("0", "0", "+99%", "0", R, "+99%", "+40%", "+40%", "+40%", "+40%", R, R, "+1019%")),
    Case("Llama-4-Scout", "4,096 bytes x (12 layers x T + 36 layers x 8,192)", 2_818_572_288,
         {"model": "llama-4-scout"},
         (R, "+129%", "+129%", "+129%", R, "+129%", R, "+129%", "-100%", "+11%", R, R, "crash")),
    Case("Qwen3-32B", "2 x 64 layers x 8 heads x 128 x 2 bytes x T", 262_144 * T, {"model": "qwen3-32b"},
         ("0", "0", "0", "0", R, "0", "-38%", "-38%", "-38%", "-37%", "0", R, "+400%")),
    Case("Gemma-3n-E4B", "2,048 bytes x (4 layers x T + 16 layers x 512); 15 of 35 layers share", 285_212_672,
         {"model": "gemma-3n-e4b"},
         (R, "+73%", "+724%", R, R, "+724%", R, "+724%", "-100%", "+517%", R, R, "crash")),
    Case("falcon-7b", "2 x 32 layers x 1 head x 64 x 2 bytes x T", 8_192 * T, {"model": "falcon-7b"},
         ("+7000%", "0", "+7000%", "0", R, "+7000%", "+1500%", "+7000%", "+7000%", "+7000%", R, R, "+7004%")),
)  # fmt: skip
LLAMA = {"model": "llama-3.1-8b"}
FORMATS = (
    Case("fp8 per tensor", "1 byte", 2**31, {**LLAMA, "kv": "fp8_e4m3"}, ("kvfit, hf-mem, llmfit 2.000: right",)),
    Case("int8 per token and head, fp32 scale", "(128 + 4) / 128 bytes", 2**31 * 132 // 128,
         {**LLAMA, "kv": "int8,scale=fp32"}, ("none has it",)),
    Case("q8_0", "34 / 32 bytes", 2**31 * 34 // 32, {**LLAMA, "kv": "q8_0"},
         ("llmfit 2.0 (-5.9%); gguf-parser and hf-mem's GGUF path exact by their source",)),
    Case("q4_0", "18 / 32 bytes", 2**31 * 18 // 32, {**LLAMA, "kv": "q4_0"},
         ("llmfit 1.0 (-11.1%); sparkfit half a byte (-11.1%)",)),
    Case("NVFP4", "1/2 + 1/16 bytes", 2**31 * 9 // 16, {**LLAMA, "kv": "nvfp4"}, ("kvfit 1.000 (-11.1%)",)),
    Case("MXFP4", "1/2 + 1/32 bytes", 2**31 * 17 // 32, {**LLAMA, "kv": "mxfp4"},
         ("kvfit: the same half byte in its table (not run)",)),
    Case("int4, groups of 32, fp16 scale and zero", "1/2 + 4/32 bytes", 2**31 * 5 // 8,
         {**LLAMA, "kv": "int4:group/32,asym"}, ("kvfit 1.000 (-20%)",)),
    Case("KIVI 2 bit, groups of 32, residual 128", "1/4 + 4/32 bytes; here no row of K and 128 of V in 16 bit",
         812_122_112, {**LLAMA, "kv": "kivi2"}, ("none has it",)),
    Case("DeepSeek-V3.2, fp8_ds_mla and index", "61 layers x (656 + 132) bytes x T", 48_068 * T,
         {"model": "deepseek-v3.2", "latent": "fp8_ds_mla", "index": INDEX},
         ("aiconfigurator 47,092 bytes a token (-2.0%); kvfit 1.3105 (-10.7%); hf-mem 26.69 (+1719%)",)),
)  # fmt: skip


def kvplan_bytes(case: Case) -> int:
    """kvplan's logical bytes.

    Raises:
        SystemExit: kvplan refuses the request or its figure differs from the one by hand.
    """
    try:
        plan = make_plan(PlanRequest(context=T, beyond_max=True, **case.request))
    except KvplanError as refused:
        raise SystemExit(f"{case.name}: refused: {refused.message}") from None
    assert plan.kv is not None
    if plan.kv.logical_bytes != case.nbytes:
        raise SystemExit(f"{case.name}: kvplan says {plan.kv.logical_bytes:,} bytes, by hand {case.nbytes:,}")
    return plan.kv.logical_bytes


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Accuracy",
        "",
        "<!-- Written by tools/accuracy_page.py; do not edit. -->",
        "",
        f"Logical cache bytes of one sequence of T = {T:,} tokens: figures worked out by hand, kvplan's figures",
        "(computed when this page was written, exact to the byte), and what other planners answer.",
        "",
        "The peers' answers were collected on 2026-11-30 with kvfit 0.3.0, hfit 0.1.1, llmfit 1.1.17, aiconfigurator",
        "0.12, llm-mem-planner 0.2.2, hf-mem 0.5.6, vllm-wizard 0.2.0, hf-vram-calc 1.0.9, modelinfo 1.4.4, servcalc",
        "0.1.0 and the then current llm-mem, fitcheck, vramcalc and llm-plan. 0 means within 1%, refused no number.",
        "hf-mem's overestimates for sliding windows are deliberate upper bounds; llm-mem-planner covers only latents.",
        "",
        "## Models, 16-bit cache",
        "",
        "| model | by hand | bytes | kvplan | GiB |",
        "|---|---|---:|---:|---:|",
    ]
    for case in MODELS:
        lines.append(f"| {case.name} | {case.by_hand} | {case.nbytes:,} | {_figures(case)} |")
    lines += ["", "What the others answer, as the error against the same figure:", ""]
    lines += [f"| model | kvplan | {' | '.join(PEERS)} |", "|---|---|" + "---|" * len(PEERS)]
    for case in MODELS:
        assert len(case.peers) == len(PEERS), case.name
        lines.append(f"| {case.name} | exact | {' | '.join(case.peers)} |")
    lines += [
        "",
        "States of Qwen3-Next count in their native number types: fp32 recurrent, bf16 convolution. With index keys in",
        "fp8, kvfit's DeepSeek-V3.2 is 0.3% low; given `layer_types` in the config, its Gemma-3-27B is exact.",
        "",
        "## Formats, with their scales",
        "",
        "Llama-3.1-8B unless the row says otherwise; by hand per element.",
        "",
        "| format | kvplan option | by hand | bytes | kvplan | GiB | others, in GiB |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for case in FORMATS:
        options = " ".join(f"--{name} {value}" for name, value in case.request.items() if name != "model")
        row = (case.name, f"`{options}`", case.by_hand, f"{case.nbytes:,}", _figures(case), case.peers[0])
        lines.append(f"| {' | '.join(row)} |")
    lines += [
        "",
        "A static scale (fp8 per tensor, NVFP4's global scale) is a constant of the layer and stands apart in a plan,",
        "as `constant_bytes`. KIVI's usual estimate counts both residual windows full; this is exact at this length.",
        *_engines(),
    ]
    return "\n".join(lines) + "\n"


def _engines() -> list[str]:
    """Both tables about engines, from the stored results of tools/accuracy.py."""
    stored = json.loads(ENGINES.read_text(encoding="utf-8"))
    lines = [
        "",
        "## Engines: figures produced by their own code",
        "",
        f"`{stored['golden']['command']}`. Each record holds figures that the engine's own code computed or allocated;",
        "a refusal is a configuration that the engine refused, and equal means that kvplan refuses it too.",
        "",
        "| file | records | equal | different | not in scope | of the refusals, refused |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, count in stored["golden"]["files"].items():
        out = f"{count['not_in_scope']} ({count['not_in_scope_percent']}%)"
        refused = f"{count['refusals_equal']} of {count['refusals']}"
        cells = (f"`{name}`", f"{count['records']:,}", f"{count['equal']:,}", str(count["different"]), out, refused)
        lines.append(f"| {' | '.join(cells)} |")
    for name, count in stored["golden"]["files"].items():
        lines += [f"\nNot in scope of `{name}`: {rule} ({n} records)." for rule, n in count["rules"].items()]
    lines += [
        "",
        "## Engines: figures printed in public logs",
        "",
        f"`{stored['logs']['command']}`. Independent: the log's source names the model and the setting, nothing was",
        "fitted. Reproduced: every printed figure lies within the rounding of what was printed.",
        "",
        "| engine | logs | independent | of them reproduced | explained | different | all reproduced |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for engine, count in stored["logs"]["engines"].items():
        cells = (engine, *(str(count[key]) for key in LOG_COLUMNS))
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\n{one['log']} ({one['engine']}): {one['why']}" for one in stored["logs"]["explained"]]
    return lines


def _figures(case: Case) -> str:
    nbytes = kvplan_bytes(case)
    return f"{nbytes:,} | {nbytes / GIB:.4f}"


def main() -> int:
    """Write the page, or with --check only compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("docs/accuracy.md is current" if current else "docs/accuracy.md is stale: run tools/accuracy_page.py")
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
