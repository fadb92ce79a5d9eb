"""One run: answers, lm-eval, results.json."""
