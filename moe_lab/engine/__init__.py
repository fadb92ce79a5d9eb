"""The engine: a shared past is computed once, then rows that hang off it.

Scoring answer choices, ensembles of routings and documents whose prompts begin alike are the same thing here: a tree
of tokens over a cache. `EngineLM` is the engine behind lm-eval's interface.
"""
