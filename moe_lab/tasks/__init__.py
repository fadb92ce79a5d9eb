"""Evaluation tasks: lm-eval's own, ours as YAMLs beside this file, on hub data or local files.

Nothing is imported here: the interpreter inside the cage starts here, too.
"""
