"""Prompt tuning and prefix tuning: learned vectors before every prompt of an untouched model."""
