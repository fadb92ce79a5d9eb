"""Prompts whose last tokens are routed anew."""
