"""`method=roe`: ensembles over Gumbel-top-k routings."""
