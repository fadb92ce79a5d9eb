"""Names of the metrics that a paper's table can show; `experiment.py` has their check."""

HEADLINE = "headline"
"""Each task's own headline metric."""
EXPERT = "expert."
"""The prefix of the names of expert metrics."""
