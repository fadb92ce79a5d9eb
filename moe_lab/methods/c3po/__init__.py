"""C3PO: Critical-layer, Core-expert, Collaborative Pathway Optimization (arXiv 2504.07964)."""
