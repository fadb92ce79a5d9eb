"""DeepSeek-MoE-16B, which transformers does not have and whose published code no longer loads.

`import moe_lab` registers it with the Auto classes (`models/registration.py`); nothing else imports it.
"""
