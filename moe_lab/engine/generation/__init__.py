"""Generation: prefill, sampling, the prefix cache."""
