"""Fine-tuning with freezing schedules of routers and experts (MoE-Bench, sections 2.3.1 and
3.3.3)."""
