"""Judges of answers: a reward model, Llama Guard, OpenAI's moderation endpoint, the toy world's classifier."""
