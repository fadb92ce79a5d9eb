"""What `mode=plan` says of each run: its state, tokens, memory and disk space."""
