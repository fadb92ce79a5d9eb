"""`method=pretrain`: train a Mixture-of-Experts design from scratch,
then evaluate it (MoE-Bench, section 2.2)."""
