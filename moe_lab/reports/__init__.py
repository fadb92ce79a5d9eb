"""Tables of stored results: on the terminal, and the tables of papers.

Reads results.json files only.
"""
