"""Reference questions that the model answers correctly: documents, files, embeddings and nearest
neighbours."""
