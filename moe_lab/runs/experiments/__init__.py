"""Time and memory of generation, measured side by side and stored (RoE, section 3.4)."""
