"""Collaboration-constrained routing (MoE-Bench, sections 4.1 and 4.2; Zhang et al. 2025)."""
