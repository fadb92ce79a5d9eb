"""Conversations to train on: read, and tokenized."""
