"""`method=icl`: similar solved questions in the prompt."""
