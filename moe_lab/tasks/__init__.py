"""Evaluation tasks: lm-eval's tasks and the YAMLs of this folder, on hub data or local files."""
