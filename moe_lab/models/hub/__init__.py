"""The Hugging Face hub: what a repository holds, fetching it so that nothing is fetched twice, and what went wrong."""
