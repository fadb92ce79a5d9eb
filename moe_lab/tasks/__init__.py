"""Evaluation tasks: lm-eval's tasks and the YAMLs of this folder, on hub data or local files.

This file imports nothing: the interpreter in the sandbox imports it, too.
"""
