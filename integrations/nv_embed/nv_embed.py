"""The vectors of NV-Embed-v2 for `method.embeddings=<file>`.

The file has a vector of each question and reference of an experiment or a grid.

NV-Embed-v2 runs code from its own folder, with an older transformers than moe_lab's. So there are
two steps. The second runs in an environment of the model's own, without moe_lab:

    python integrations/nv_embed/nv_embed.py texts experiment=c3po/table1 scale=paper > texts.jsonl

    pip install torch==2.2.0 transformers==4.42.4 sentence-transformers==2.7.0 datasets safetensors
    python integrations/nv_embed/nv_embed.py vectors texts.jsonl vectors/nv-embed-v2.safetensors

The experiment then takes the file:

    python -m moe_lab experiment=c3po/table1 scale=paper \
        method.embeddings=vectors/nv-embed-v2.safetensors

`texts` takes the overrides of a command of moe_lab and reads data, no weights. One file serves all
experiments whose texts it has: experiment=all, or several names separated by commas.

The versions, the maximum length, padding, end token and normalization are those of the model's
card. A test question is a query, with an instruction. A reference is a passage, without one. The
paper names no instruction. INSTRUCTION is the one by which the model's authors search for similar
questions (Quora).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

MODEL = "nvidia/NV-Embed-v2"
INSTRUCTION = (
    "Given a question, retrieve questions that are semantically equivalent to the given question"
)
MAX_SEQ_LENGTH = 32768
BATCH_SIZE = 8

# Step 1, in moe_lab's environment


def texts(overrides: list[str]) -> list[dict[str, Any]]:
    """{"text", "query"} of every text that a command compares; `query`: it is a test question.

    Raises ConfigError or TaskError for a command without a method that reads embeddings, and for
    missing data.
    """
    from moe_lab.errors import ConfigError
    from moe_lab.models.hub import go_offline
    from moe_lab.runs.config import compose_or_explain, to_configs
    from moe_lab.runs.experiments.composing import experiment_configs
    from moe_lab.tasks.loading import task_cache

    cells = compose_or_explain(overrides)
    configs = to_configs(cells)
    if configs[0].experiment:
        configs = experiment_configs(configs[0], cells[0])
    read: dict[str, Any] = {}
    for config in filter(_compares, configs):
        alike = replace(config, method=None, overrides=[])  # other keys of a method change no text
        read[repr((alike, config.method.reference, config.method.reference_size))] = config
    if not read:
        raise ConfigError(
            "No method of this command reads method.embeddings. Give method=c3po or method=icl."
        )
    if configs[0].offline:
        go_offline()
    queries: dict[str, bool] = {}
    references: dict[str, bool] = {}
    with task_cache():
        for config in read.values():
            queries |= dict.fromkeys(_questions(config), True)
            references |= dict.fromkeys(_references(config), False)
    return [{"text": text, "query": query} for text, query in (references | queries).items()]


def _compares(config: Any) -> bool:
    """Whether the configuration's method compares questions with references."""

    method = config.method
    return hasattr(method, "embeddings") and "embeddings" not in method.unread


def _questions(config: Any) -> Iterator[str]:
    """The prompts of the test documents."""
    from moe_lab.tasks.documents import select_documents
    from moe_lab.tasks.loading import load_tasks
    from moe_lab.tasks.requests import build_requests

    tasks = load_tasks(config)
    for name, numbers in select_documents(config, tasks).items():
        for instances in build_requests(config, tasks["tasks"][name], samples=numbers):
            yield from (instance.args[0] for instance in instances)


def _references(config: Any) -> Iterator[str]:
    """The prompts of the reference documents. A run uses those that its model answers correctly."""
    from moe_lab.methods.references.documents import reference_documents
    from moe_lab.methods.references.questions import reference_questions

    documents = reference_documents(config, config.method)
    yield from (question.prompt for question in reference_questions(config, documents))


# Step 2, in the model's environment


def vectors(lines: list[dict[str, Any]], file: Path) -> None:
    """Write two tensors to the file.

    `vectors`: float32 [texts, 4096], of unit length. `sha256`: uint8 [texts, 32], of each text's
    UTF-8.
    """
    import torch
    from safetensors.torch import save_file
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(MODEL, trust_remote_code=True)
    model.max_seq_length = MAX_SEQ_LENGTH
    model.tokenizer.padding_side = "right"
    found = []
    ordered = []
    for query, prompt in ((True, f"Instruct: {INSTRUCTION}\nQuery: "), (False, None)):
        own = [line["text"] for line in lines if line["query"] == query]
        if own:
            ended = [text + model.tokenizer.eos_token for text in own]
            options = {
                "batch_size": BATCH_SIZE,
                "normalize_embeddings": True,
                "show_progress_bar": True,
            }
            found.append(torch.as_tensor(model.encode(ended, prompt=prompt, **options)).float())
            ordered += own
    keys = [
        list(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()) for text in ordered
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"vectors": torch.cat(found), "sha256": torch.tensor(keys, dtype=torch.uint8)}, file)


def main(argv: list[str]) -> None:
    """Run one of the two steps."""
    step, *rest = argv or ["--help"]
    if step == "texts":
        for line in texts(rest):
            print(json.dumps(line))
    elif step == "vectors" and len(rest) == 2:
        read = Path(rest[0]).read_text(encoding="utf-8").splitlines()
        vectors([json.loads(line) for line in read], Path(rest[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
