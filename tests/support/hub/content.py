"""What the loopback hub holds: a small random OLMoE under its real id, and invented
rows in GSM8K's real layout."""

import io
from pathlib import Path

from tests.support.models import make_model, make_tokenizer

OLMOE = "allenai/OLMoE-1B-7B-0924-Instruct"
GSM8K = "openai/gsm8k"
SHARDS = 4

CARD = """\
---
language: [en]
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
  - split: test
    path: socratic/test-*
---
Rows made for tests.
"""


def small_olmoe(folder: Path, seed: int = 0) -> dict[str, bytes]:
    """Files of a random OLMoE of half a megabyte in several shards, with a byte tokenizer."""
    model = make_model("olmoe", seed, max_position_embeddings=4096)
    model.save_pretrained(folder, max_shard_size="150KB")
    make_tokenizer().save_pretrained(folder)
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    assert sum(name.endswith(".safetensors") for name in files) >= SHARDS
    return files | {
        "README.md": b"Random weights.\n",
        "pytorch_model.bin": b"not what transformers loads",
    }


def gsm8k() -> dict[str, bytes]:
    """A data set repository as openai/gsm8k is laid out."""
    files = {"README.md": CARD.encode()}
    for config in ("main", "socratic"):
        files[f"{config}/train-00000-of-00001.parquet"] = _parquet(range(12))
        files[f"{config}/test-00000-of-00001.parquet"] = _parquet(range(100, 106))
    return files


def _parquet(numbers: range) -> bytes:
    """A question for each number."""
    import pyarrow
    import pyarrow.parquet

    questions = []
    answers = []
    for cups in numbers:
        extra = cups % 5
        questions.append(f"Eve has {cups} cups and gets {extra} more. How many?")
        answers.append(f"{cups}+{extra}={cups + extra}\n#### {cups + extra}")
    table = pyarrow.table({"question": questions, "answer": answers})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()
