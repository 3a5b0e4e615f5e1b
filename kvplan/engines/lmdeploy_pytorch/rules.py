"""Where the rules of LMDeploy's PyTorch engine are stated, and its constants. Source: the 0.18.0 wheel, read."""

from __future__ import annotations

TITLE = "LMDeploy (PyTorch engine)"
PROJECT = "LMDeploy 0.18.0, lmdeploy/"
SCHEMA = PROJECT + "pytorch/engine/cache_engine/schema.py"
LAYOUT = PROJECT + "pytorch/engine/cache_engine/layout.py"
EXECUTOR = PROJECT + "pytorch/engine/executor/base.py"
MESSAGES = PROJECT + "messages.py, PytorchEngineConfig"
WINDOW = PROJECT + "pytorch/paging/block_manager/window_block_manager.py"
STATES = PROJECT + "pytorch/configurations/qwen3_5.py and qwen3_next.py"
RESERVED = PROJECT + "pytorch/engine/config_builder.py:92, num_reserved_gpu_blocks"

ALIGNMENT = 256
"""Bytes to which a tensor's share of a block (or of a state slot) is rounded up."""
STATE_SLOTS_BESIDE = 2
"""State slots beside those of the batch: one for the system, one for a rolling prefill."""
BLOCK_TOKENS = 64
"""Tokens of a block unless asked for otherwise."""
WIDE_HEAD = 512
"""Channels of a head from which on blocks have 32 tokens."""
