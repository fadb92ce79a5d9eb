"""`experiment=`: the cells of a paper's tables, their runs, and their figures."""
