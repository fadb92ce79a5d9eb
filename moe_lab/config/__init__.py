"""The typed configuration: schema, parsing, composing with Hydra, and its errors."""

__version__ = "1.0.0"
