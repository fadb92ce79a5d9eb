"""MoE-Bench's expert metrics: how evenly experts are used, with whom, and what accuracy hangs on
them."""
