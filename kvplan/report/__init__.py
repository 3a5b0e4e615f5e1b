"""A plan as rows, and rows on a terminal. No arithmetic: every number comes from the plan."""
