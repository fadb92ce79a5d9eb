"""MoE designs for pre-training: two backbones with five routers, shared experts and a selection bias.

`import moe_lab` registers them with the Auto classes (`models/registration.py`).
"""
