"""Solved reference questions: data, embeddings, neighbours, and their store."""
