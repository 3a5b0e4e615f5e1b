"""Makes Triton's interpreter three times as fast, for everything that runs many small kernels in it.

Before each call of a device function the interpreter replaces the members of `triton.language` by its own, found with
`inspect.getmembers`, although its caller has done so already: two thirds of the time of our kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def replace_builtins_once() -> None:
    """From now on skip the replacement where it is in place; does nothing on a Triton that is built differently."""
    replace: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    scope: Callable[[], Any] | None = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or scope is None:
        return

    def once(fn: Any) -> Any:
        seen = [lang for lang in (tl, tl.core) if any(value is lang for value in fn.__globals__.values())]
        return replace(fn) if any(tl.core.is_builtin(lang.arange) for lang in seen) else scope()

    interpreter._patch_lang = once
