"""The public Python interface: what the command does, for a model and tokenizer of one's own.

Its names are those of `moe_lab` itself (`from moe_lab import RoE`), which imports this folder when
they are used.
"""
