"""What all engines share: how an engine is declared, and how a request is read by it."""
