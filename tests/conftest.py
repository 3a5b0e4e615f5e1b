"""Shared by all tests: where the fact data lies, and the accounting of skips.

Under KVPLAN_CI=1 every skip must be for a missing GPU, and their number must be EXPECTED_GPU_SKIPS: a test that
silently stops running is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
SHARED = REPO.parent / "shared"
NO_GPU = "needs a CUDA GPU"
EXPECTED_GPU_SKIPS = 103

# Defaults of the person who runs the tests would change what commands answer.
os.environ["KVPLAN_CONFIG"] = os.devnull
for _name in ("GPU", "ENGINE", "UTIL", "WEIGHTS_DTYPE"):
    os.environ.pop(f"KVPLAN_{_name}", None)

_skips: list[tuple[str, str]] = []


def in_ci() -> bool:
    return os.environ.get("KVPLAN_CI") == "1"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of facts beside the project; tests that read it skip when it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the facts folder ../shared is not here")
    return SHARED


def has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not has_gpu():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skips.append((report.nodeid, reason))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skips.append((report.nodeid, str(report.longrepr)))


def _skip_faults(config: pytest.Config) -> list[str]:
    faults = [f"{node}: {reason}" for node, reason in _skips if NO_GPU not in reason]
    count = sum(NO_GPU in reason for _, reason in _skips)
    whole = config.args == [str(REPO / "tests")] or config.args == ["tests"]
    if whole and not has_gpu() and count != EXPECTED_GPU_SKIPS:
        faults.append(f"{count} tests skipped for want of a GPU, expected {EXPECTED_GPU_SKIPS} (tests/conftest.py)")
    return faults


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = hasattr(session.config, "workerinput")
    if in_ci() and not worker and _skip_faults(session.config) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    gpu = sum(NO_GPU in reason for _, reason in _skips)
    terminalreporter.write_line(f"skipped for want of a GPU: {gpu}")
    if in_ci():
        for fault in _skip_faults(terminalreporter.config):
            terminalreporter.write_line(f"KVPLAN_CI: not allowed to skip: {fault}", red=True)
