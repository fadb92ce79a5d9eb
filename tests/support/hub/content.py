"""What the loopback hub holds: a small random OLMoE under its real id, and invented rows in GSM8K's real layout."""

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
    splits = {"train": 12, "test": 6}
    files = {
        f"{config}/{split}-00000-of-00001.parquet": _parquet(config, split, count)
        for config in ("main", "socratic")
        for split, count in splits.items()
    }
    return {"README.md": CARD.encode(), **files}


def _parquet(config: str, split: str, count: int) -> bytes:
    import pyarrow
    import pyarrow.parquet

    start = 0 if split == "train" else 100
    rows = {
        "question": [
            f"Eve has {i} cups and gets {i % 5} more. How many?"
            for i in range(start, start + count)
        ],
        "answer": [
            f"{i}+{i % 5}={i + i % 5}\n#### {i + i % 5}" for i in range(start, start + count)
        ],
    }
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(rows), file)
    return file.getvalue()
