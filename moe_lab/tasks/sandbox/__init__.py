"""The sandbox for programs that a model wrote: Linux namespaces and limits. Without them nothing is executed.

`moe_lab.tasks.sandbox.programs` is its entrance. Nothing is imported here: the interpreter inside the cage starts
here, too.
"""
