"""What a model's own routing selects on texts, counted once: outputs/profiles/<model>-<id8>/ of `c2r` and `steer`.

profile.json has all that determines the counts, and is written last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.methods.data_files import Conversation
from moe_lab.models.identity import model_identity
from moe_lab.results.folder import Artifact
from moe_lab.results.identity import decisive_versions, folder_name, run_id

if TYPE_CHECKING:
    from moe_lab.methods.tokenized import Row
    from moe_lab.models.facts import ModelFacts

LENGTH = 2048
"""The largest number of tokens of a conversation that are counted: MoE-Bench's length in fine-tuning."""


def stored_profile(
    config: Config, content: dict[str, Any], count: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """(folder, content of profile.json) of the profile that `content` determines, counted once.

    Args:
        count: writes the counts into the folder, and returns the rest of profile.json.
    """
    digest = run_id(content)
    folder = Path(config.output_dir) / "profiles" / folder_name(config.model.name, digest=digest)
    profile = Artifact(folder=folder, id=digest, record="profile.json")
    return folder, profile.load_or_make(lambda: content | count(folder))


def model_content(config: Config, facts: ModelFacts) -> dict[str, Any]:
    """All that determines the numbers of the run's model: its weights, its dtype, the versions of libraries."""
    from moe_lab.models.source import model_source

    return {
        "model": model_identity(model_source(config.model), config.model),
        "commit": facts.commit,
        "dtype": facts.dtype,
        "versions": decisive_versions(),
    }


def conversation_rows(config: Config, conversations: list[Conversation], facts: ModelFacts) -> list[Row]:
    """The first `LENGTH` tokens of each conversation, with labels at the tokens of the answers."""
    from moe_lab.methods.tokenized import encode_all
    from moe_lab.models.tokenizer import load_tokenizer, with_template

    tokenizer = load_tokenizer(config.model, offline=config.offline)
    with_template(tokenizer)
    return encode_all(tokenizer, conversations, min(LENGTH, facts.max_length)).rows
