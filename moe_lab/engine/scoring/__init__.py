"""Log-likelihoods of continuations."""
