"""Runs: prepared, executed, planned and summarized."""
