"""The sandbox for programs that a model wrote: Linux namespaces and limits. Without them nothing is executed.

`moe_lab.tasks.sandbox.programs` is the module to use. This file imports nothing, because the interpreter inside the
sandbox imports it, too.
"""
