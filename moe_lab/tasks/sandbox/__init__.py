"""The cage in which programs that a model wrote are executed: Linux namespaces and limits, or no execution at all.

`moe_lab.tasks.sandbox.programs` is its entrance. Nothing is imported here: the interpreter inside the cage starts
here, too.
"""
