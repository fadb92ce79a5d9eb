"""What a run leaves behind: identity, folder, response log, result schema, statistics."""
