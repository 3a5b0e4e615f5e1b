"""Errors that a user sees: one line of what, one of the fix, one documented exit code.

Raised in the core, worded once, caught only in ``kvplan.cli.main``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the `kvplan` command. They are stable: scripts may rely on them."""

    OK = 0
    """The command did what was asked (a plan that does not fit is an answer, not a failure)."""
    INTERNAL = 1
    """A defect of kvplan itself; the traceback is printed and worth reporting."""
    USAGE = 2
    """The command line is wrong: unknown option, impossible number, unknown format."""
    INPUT = 3
    """A file or a named spec cannot be used: not found, not readable, or it breaks the schema."""
    UNSUPPORTED = 4
    """The request is understood but kvplan has no layout, kernel or rule for it yet."""
    NO_DEVICE = 5
    """A GPU (or torch and Triton) is needed and is not there."""
    CHECK_FAILED = 6
    """A validation ran and one of its correctness checks is red, or a checked configuration no longer holds."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C; finished results were kept."""


class KvplanError(Exception):
    """Base of every expected failure.

    Attributes:
        message: one line, what is wrong, with the offending value in it.
        hint: one line, the fix.
        exit_code: what the process returns.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KvplanError):
    """A value on the command line (or of a public function) is impossible."""


class InputError(KvplanError):
    """A file or spec cannot be used."""

    exit_code = ExitCode.INPUT


class UnsupportedError(KvplanError):
    """Understood, but not built yet."""

    exit_code = ExitCode.UNSUPPORTED


class NoDeviceError(KvplanError):
    """No GPU, or no torch and Triton."""

    exit_code = ExitCode.NO_DEVICE


def nearest(value: str, options: Iterable[str]) -> str | None:
    """The option closest in spelling to `value`, or None when nothing is close."""
    matches = difflib.get_close_matches(value.lower(), list(options), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(value: str, options: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, then all of them."""
    known = sorted(options)
    near = nearest(value, known)
    listing = "known: " + ", ".join(known)
    return f"did you mean {near}? {listing}" if near else listing
