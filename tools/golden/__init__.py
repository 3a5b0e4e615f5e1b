"""Golden figures of engines against kvplan: one module per engine, each with `claims` and `outcomes`."""
