"""Models: where they come from, what they are, and loading them."""
