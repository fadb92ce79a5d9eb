"""Programs that a model wrote: executed in bubblewrap, and scored."""
