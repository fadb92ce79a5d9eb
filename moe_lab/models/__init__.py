"""Models: their sources, facts about them, and loading."""
