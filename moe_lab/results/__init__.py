"""What a run stores: identity, folder, response log, result schema, statistics."""
