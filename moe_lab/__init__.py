"""Mixture-of-Experts language models under other routings: do they get better, at what cost?"""

from moe_lab.models.registration import register_models

__version__ = "0.1.0"

register_models()
