"""Evaluation tasks: lm-eval's own, ours as lm-eval YAMLs beside this file, on hub data or local files."""

from moe_lab.tasks.documents import documents_digest, select_documents
from moe_lab.tasks.loading import load_tasks

__all__ = ["documents_digest", "load_tasks", "select_documents"]
