"""The evaluation of one run, and `metrics=expert`, which measures more than its scores."""
