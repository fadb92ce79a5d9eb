"""The engine: a shared prefix is computed once, then the branches after it.

Answer choices, routing samples and prompts with a common prefix are trees of tokens over a KV
cache. `EngineLM` is the engine under lm-eval's interface.
"""
