"""Profiles: how often a model selects two experts together, counted by a run or recorded on conversations.

outputs/profiles/<model>-<id8>/
  counts.safetensors   `pairs`, int64 [layers, experts, experts]: tokens that took both experts
  profile.json         all that determines the counts; written last

L = MoE layers, E = experts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError
from moe_lab.metrics.stored_metrics import COUNTS, FOLDER
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import write_atomically
from moe_lab.results.identity import folder_name, run_id
from moe_lab.results.versions import decisive_versions

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config
    from moe_lab.methods.conversations.read import Conversation, Data
    from moe_lab.models.load import LoadedModel

NUMERICS = 1
"""Raised whenever a recorded profile may change."""
LENGTH = 2048
"""Most tokens of a conversation that count, the paper's of fine-tuning."""


def read_pairs(path: str | Path) -> tuple[Tensor, bool]:
    """Read counts: (int64 [L, E, E], whether they were counted on a run's test documents).

    Sums prompts and answers. Raises ConfigError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(path).expanduser()
    file = file / FOLDER / COUNTS if file.is_dir() else file
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"method.profile={path}: {file} cannot be read as counts of experts. Give the folder of a run with "
            "metrics=expert, or its expert_metrics/counts.safetensors."
        ) from error
    found = [tensor for name, tensor in tensors.items() if name.partition(".")[0] == "pairs"]
    if not found:
        raise ConfigError(f"method.profile={path}: {file} has no pairs of experts.")
    return sum(found[1:], found[0]).long(), "pairs" not in tensors  # a run tells its phases apart


def digest_of(pairs_LEE: Tensor) -> str:
    """SHA-256 of a profile's content."""
    return hashlib.sha256(pairs_LEE.contiguous().numpy().tobytes()).hexdigest()


def load_or_record(config: Config, data: Data, model: LoadedModel) -> tuple[Path, Tensor]:
    """(folder, [L, E, E]) of a profile of the model's own routing of conversations; recorded once."""
    content = _content(config, data.digest, model)
    digest = run_id(content)
    folder = Path(config.output_dir) / "profiles" / folder_name(config.model.name, digest=digest)
    profile = Artifact(folder=folder, id=digest, record="profile.json")
    profile.load_or_make(lambda: content | _record(folder, config, data.train, model))
    return folder, read_pairs(folder / COUNTS)[0]


def _content(config: Config, data: str, model: LoadedModel) -> dict[str, Any]:
    from moe_lab.models.identity import model_identity
    from moe_lab.models.source import model_source

    return {
        "numerics": NUMERICS,
        "data": data,
        "length": LENGTH,
        "model": model_identity(model_source(config.model), config.model),
        "commit": model.facts.commit,
        "dtype": model.facts.dtype,
        "versions": decisive_versions(),
    }


def _record(
    folder: Path, config: Config, conversations: list[Conversation], model: LoadedModel
) -> dict[str, int]:
    """Write the counts. Returns the number of conversations and tokens."""
    from safetensors.numpy import save

    from moe_lab.methods.conversations.tokenize import Rows, encode_all
    from moe_lab.metrics.teacher_forcing import PairCounts, right_tokens
    from moe_lab.models.tokenizer import load_tokenizer, with_template

    tokenizer = load_tokenizer(config.model, offline=config.offline)
    with_template(tokenizer)
    rows = Rows(encode_all(tokenizer, conversations, min(LENGTH, model.facts.max_length)).rows)
    counted = PairCounts(len(rows))
    right_tokens(model.model, rows, counted)
    write_atomically(folder / COUNTS, save({"pairs": counted.pairs_GLEE.sum(axis=0)}))
    return {"conversations": len(rows), "tokens": counted.tokens}
