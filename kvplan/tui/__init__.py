"""The planner as a full-screen terminal program. Widgets show rows of plans and compute nothing."""
