"""Forward passes over routing samples: layers, masks, batches, KV cache, observers."""
