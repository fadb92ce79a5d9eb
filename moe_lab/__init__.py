"""Mixture-of-Experts language models under other routings: do they get better, at what cost?"""

from moe_lab.models.deepseek.registration import register_deepseek

__version__ = "0.1.0"

register_deepseek()
