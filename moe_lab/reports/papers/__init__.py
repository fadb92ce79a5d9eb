"""The papers' tables, beside the papers' own numbers."""
