"""Figures that engines printed in public logs against kvplan: one module per engine, with `ENGINES` and `check`."""
