"""The Hugging Face hub: the files of a repository, resumable downloads, and errors."""
