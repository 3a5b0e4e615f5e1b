"""How a K/V row is stored: the format grammar and the layouts. No torch, no pydantic."""
