"""Keys of `gen_kwargs`."""

MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""lm-eval's names of the number of new tokens, in its order of precedence."""
