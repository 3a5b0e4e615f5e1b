"""`python -m kvplan_kernels.matrix`: run trap cases on this machine's GPU, or in Triton's interpreter without one."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kvplan_kernels.matrix.worker import prepare, run_group

if TYPE_CHECKING:
    from kvplan_kernels.matrix.cases import Case
    from kvplan_kernels.matrix.report import Report
    from kvplan_kernels.matrix.run import Outcome


# A run that is cut off leaves a report that is at most so old.
SAVE_SECONDS = 10.0


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    prepare()
    from kvplan_kernels.matrix.report import Report

    if given.merge:
        reports = [Report.from_json(json.loads(path.read_text())) for path in given.merge]
        report = reports[0]
        for other in reports[1:]:
            report.merge(other)
    elif given.resume:
        report = Report.from_json(json.loads(given.json.read_text()))
        report.forget_failures()
        report.merge(run(given, set(report.passed_cases)))
    else:
        report = run(given)
    _save(report, given.json)
    print("\n".join(report.lines()))
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvplan_kernels.matrix", description=__doc__)
    parser.add_argument("--cases", default="pairwise", help="pairwise, all, or a file of cases")
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the GPU; each compiles for itself")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th shape, from the i-th on")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no shape after this time")
    parser.add_argument("--resume", action="store_true", help="run only cases that have not passed in the --json report")
    parser.add_argument("--merge", type=Path, nargs="+", help="add up reports of shards instead of running")
    return parser


def run(given: argparse.Namespace, passed: Collection[str] = ()) -> Report:
    """Run the chosen cases but those whose digests are in `passed`."""
    from kvplan_kernels.matrix.report import Report

    report = Report(device(), given.seed)
    shapes: dict[tuple, list[Case]] = defaultdict(list)
    last = []
    for case in chosen_cases(given.cases):
        refused = case.refusal()
        if refused:
            report.infeasible[refused] += 1
        elif case.digest in passed:
            continue
        elif case.pool == "huge":
            last.append(case)
        else:
            shapes[case.formats, case.dims, case.page_size, case.group, case.heads, case.dtype].append(case)
    index, count = map(int, given.shard.split("/"))
    groups = list(shapes.values())[index::count]
    start = saved = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=spawn, initializer=prepare) as pool:
        stop = start + given.limit_seconds
        for done in as_completed([pool.submit(run_group, group, given.seed, stop) for group in groups]):
            _collect(report, *done.result())
            if time.monotonic() - saved > SAVE_SECONDS:
                report.seconds, saved = time.monotonic() - start, time.monotonic()
                _save(report, None if given.resume else given.json)
    # One at a time: each of these fills a good part of the GPU's memory.
    for case in last[index::count]:
        _collect(report, *run_group([case], given.seed, stop))
    report.seconds = time.monotonic() - start
    return report


def _save(report: Report, path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(report.as_json(), indent=1) + "\n")


def _collect(report: Report, outcomes: list[Outcome], not_run: int) -> None:
    report.not_run += not_run
    for outcome in outcomes:
        report.add(outcome)


def chosen_cases(name: str) -> list[Case]:
    from kvplan_kernels.matrix.pairwise import COVER_SEED, cover, load
    from kvplan_kernels.matrix.whole import candidates

    if name == "pairwise":
        return cover(COVER_SEED)
    return list(candidates()) + cover(COVER_SEED) if name == "all" else load(Path(name))


def device() -> dict[str, str]:
    import triton

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "interpreter"
    return {"name": name, "torch": torch.__version__, "triton": triton.__version__}


if __name__ == "__main__":
    sys.exit(main())
