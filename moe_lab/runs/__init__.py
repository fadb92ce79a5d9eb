"""Runs: prepared, executed, planned and summarized."""

STARTER = "MOE_LAB_STARTER"
"""Environment variable of workers: the process that has started them, if it is on the same machine."""
