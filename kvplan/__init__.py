"""kvplan: plan, choose and prove a KV-cache format."""

__version__ = "0.1.0.dev0"
