"""The papers' tables, next to the papers' own numbers."""
