"""Prompt tuning and prefix tuning: learned vectors before every prompt of the base model."""
