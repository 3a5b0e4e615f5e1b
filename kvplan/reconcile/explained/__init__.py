"""One module per engine: what to ask kvplan for a log, and which of its figures stands beside which line."""
