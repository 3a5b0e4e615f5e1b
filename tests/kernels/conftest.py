"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported.

Without torch or Triton there is nothing to test here; under KVPLAN_CI=1 that is a failure.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore_glob: list[str] = []

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    # Small tensors: more threads only spin, and other test processes want the cores.
    torch.set_num_threads(1)
elif os.environ.get("KVPLAN_CI") == "1":
    raise ImportError("torch and triton are needed under KVPLAN_CI=1: pip install the gpu extra of this checkout")
else:
    collect_ignore_glob.append("test_*.py")
