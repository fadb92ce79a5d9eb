"""The typed configuration: schema, parsing, composing with Hydra, and its errors."""
