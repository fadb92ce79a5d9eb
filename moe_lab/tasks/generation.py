"""The keys of `gen_kwargs` that several modules read."""

MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Spellings that lm-eval takes, first one first."""
