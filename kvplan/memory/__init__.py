"""Cache bytes as engine-neutral pure functions: ints in, terms out. Everything here is per rank, after sharding."""
