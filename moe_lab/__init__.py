"""Mixture-of-Experts language models under other routings: do they get better, at what cost?"""

__version__ = "0.1.0"
