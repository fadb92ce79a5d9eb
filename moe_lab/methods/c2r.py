"""`method=c2r`: collaboration-constrained routing (MoE-Bench, sections 4.1 and 4.2; Zhang et al. 2025).

A profile counts how often a model selects two experts together. It is counted by a run or recorded on conversations:

outputs/profiles/<model>-<id8>/
  counts.safetensors   `pairs`, int64 [layers, experts, experts]: tokens that took both experts
  profile.json         all that determines the counts; written last

L = MoE layers, E = experts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import at_least
from moe_lab.errors import ConfigError, reading
from moe_lab.methods.data_files import Conversation, Data, read_data
from moe_lab.methods.method import Context, Method
from moe_lab.methods.references.documents import check_one_process
from moe_lab.metrics.stored import COUNTS, FOLDER
from moe_lab.models.distributed import num_processes
from moe_lab.models.identity import model_identity
from moe_lab.results.atomic import write_atomically
from moe_lab.results.folder import Artifact
from moe_lab.results.identity import decisive_versions, folder_name, run_id

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.methods.policy_lm import PolicyLM
    from moe_lab.methods.tokenized import Row
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


NUMERICS = 1
"""Raised whenever a recorded profile may change."""
LENGTH = 2048
"""The largest number of tokens of a conversation that are counted: the paper's length in fine-tuning."""


class C2R(Method):
    """Routes each token to its first expert and to that expert's most co-activated partners."""

    numerics = 1
    own_routing = True
    interventions = False

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """Keys of `conf/method/c2r.yaml`."""

        name: str = "c2r"
        partners: int | None = None
        """T, the partners of each expert; null: half of the experts."""
        profile: str | None = None
        dataset: str = "toy"
        dataset_size: int | None = None

        def __post_init__(self) -> None:
            at_least("method.dataset_size", self.dataset_size, 1)

    def partners(self, facts: ModelFacts) -> int:
        """T, the number of partners of each expert."""
        return facts.experts // 2 if self.config.partners is None else self.config.partners

    def check(self, facts: ModelFacts) -> None:
        check_partners(self.partners(facts), facts)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        return {"name": self.config.name, "partners": self.partners(facts)}

    @cached_property
    def _given(self) -> tuple[Tensor, bool]:
        """The pair counts of `profile`, and whether they were counted on test documents."""
        return read_pairs(self.config.profile)

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The profile, or the data that it is recorded on. Raises ConfigError if it does not fit the model."""
        check_one_process(config)
        check_groups(config, facts)
        if self.config.profile is None:
            return {"data": self._conversations(config).digest, "length": LENGTH}
        pairs_LEE = self._given[0]
        check_profile(self.config.profile, pairs_LEE, facts)
        return {"profile": digest_of(pairs_LEE)}

    def _conversations(self, config: RunConfig) -> Data:
        return read_data(config, self.config.dataset, self.config.dataset_size)

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[PolicyLM]:
        from moe_lab.methods.policy_lm import with_policy
        from moe_lab.routing.policies import PartnersOnly, partners_of

        config = context.config
        if self.config.profile is None:
            place, pairs = load_or_record(config, self._conversations(config), model)
        else:
            place, pairs = Path(self.config.profile), self._given[0]
        policy = PartnersOnly(partners_of(pairs, self.partners(model.facts)))
        with with_policy(model, policy, config) as lm:
            lm.session_info = {"profile": place.name, "profile_sha256": digest_of(pairs)}
            yield lm

    def report(
        self, facts: ModelFacts, counters: Mapping[str, int], session_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        block = {
            "partners": self.partners(facts),
            "changed_fraction": changed_fraction(counters),
            "test_profile": self.config.profile is not None and self._given[1],
        }
        return {"c2r": block | dict(session_info)}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        return ["changed (c2r): routing decisions in which an expert was no partner of the first one."]


def changed_fraction(counters: Mapping[str, int]) -> float | None:
    """The share of decisions in `PolicyLM.cost` that the policy changed; None without a decision."""
    decisions = counters.get("routing_decisions", 0)
    return counters.get("constrained_decisions", 0) / decisions if decisions else None


def read_pairs(path: str | Path) -> tuple[Tensor, bool]:
    """(int64 [L, E, E], whether they were counted on a run's test documents): the sum over prompts and answers.

    Raises ConfigError for a file without such counts.
    """
    from safetensors.torch import load_file

    file = Path(path).expanduser()
    file = file / FOLDER / COUNTS if file.is_dir() else file
    remedy = "Give the folder of a run with metrics=expert, or its expert_metrics/counts.safetensors."
    with reading(f"method.profile={path}: {file}", remedy):
        tensors = load_file(file)
    pairs = [tensor for name, tensor in tensors.items() if name.partition(".")[0] == "pairs"]
    if not pairs:
        raise ConfigError(f"method.profile={path}: {file} has no pairs of experts.")
    is_of_run = "pairs" not in tensors  # a run counts prompts and answers separately
    return sum(pairs[1:], pairs[0]).long(), is_of_run


def digest_of(pairs_LEE: Tensor) -> str:
    """SHA-256 of a profile's content."""
    return hashlib.sha256(pairs_LEE.contiguous().numpy().tobytes()).hexdigest()


def load_or_record(config: RunConfig, data: Data, model: LoadedModel) -> tuple[Path, Tensor]:
    """(folder, pairs [L, E, E]) of a profile of the model's own routing on conversations, recorded once."""
    from safetensors.numpy import save

    from moe_lab.methods.tokenized import Rows
    from moe_lab.metrics.counts import Routes
    from moe_lab.metrics.teacher_forcing import count_rows, right_tokens

    def record(folder: Path) -> dict[str, Any]:
        rows, routes = Rows(conversation_rows(config, data.train, model.facts)), Routes()
        right_tokens(model.model, rows, routes)
        counts = count_rows(routes, rows)
        pairs_LEE = counts.pairs_GPLEE.sum(axis=(0, 1), dtype="int64")
        write_atomically(folder / COUNTS, save({"pairs": pairs_LEE}))
        return {"conversations": len(rows), "tokens": counts.tokens_P[0]}

    own = {"numerics": NUMERICS, "data": data.digest, "length": LENGTH}
    folder, _ = stored_profile(config, own | model_content(config, model.facts), record)
    return folder, read_pairs(folder / COUNTS)[0]


def stored_profile(
    config: RunConfig, content: dict[str, Any], count: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """(folder, content of profile.json) of the profile that `content` determines, counted once.

    Args:
        count: writes the counts into the folder, and returns the rest of profile.json.
    """
    digest = run_id(content)
    folder = Path(config.output_dir) / "profiles" / folder_name(config.model.name, digest=digest)
    profile = Artifact(folder=folder, id=digest, record="profile.json")
    return folder, profile.load_or_make(lambda: content | count(folder))


def model_content(config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
    """All that determines the numbers of the run's model: its weights, its dtype, the versions of libraries."""
    from moe_lab.models.source import model_source

    return {
        "model": model_identity(model_source(config.model), config.model),
        "commit": facts.commit,
        "dtype": facts.dtype,
        "versions": decisive_versions(),
    }


def conversation_rows(config: RunConfig, conversations: list[Conversation], facts: ModelFacts) -> list[Row]:
    """The first `LENGTH` tokens of each conversation, with labels at the tokens of the answers."""
    from moe_lab.methods.tokenized import encode_all
    from moe_lab.models.tokenizer import load_tokenizer, with_template

    tokenizer = load_tokenizer(config.model, offline=config.offline)
    with_template(tokenizer)
    return encode_all(tokenizer, conversations, min(LENGTH, facts.max_length)).rows


def check_partners(count: int, facts: ModelFacts) -> None:
    """Raise ConfigError for a number of partners that the model's experts cannot have."""
    least, most = facts.top_k - 1, facts.experts - 1
    if not least <= count <= most:
        raise ConfigError(
            f"method.partners={count}: this model takes {facts.top_k} of {facts.experts} experts. Give a number from "
            f"{least} to {most}."
        )


def check_groups(config: RunConfig, facts: ModelFacts) -> None:
    """Raise ConfigError for routers that choose within groups of experts, because partners may be in other groups."""
    from moe_lab.models.source import load_config

    architecture = load_config(config.model, offline=config.offline).get_text_config()
    if (getattr(architecture, "n_group", None) or 1) > 1:
        raise ConfigError(
            f"method={config.method.name}: this model ({facts.family}) chooses experts within groups, which cannot be "
            "limited to partners. Use a model that chooses among all experts."
        )


def check_profile(path: str, pairs_LEE: Tensor, facts: ModelFacts) -> None:
    """Raise ConfigError for the counts of another model."""
    shape = (facts.moe_layers, facts.experts, facts.experts)
    if tuple(pairs_LEE.shape) != shape:
        raise ConfigError(
            f"method.profile={path} has counts of shape {tuple(pairs_LEE.shape)}, and this model has {shape} (layers, "
            "experts, experts). Give a profile of this model."
        )


# The constraint of a fine-tuning (`method=finetune-freeze method.partners=`)
#
# Its profile is that of the untrained model. It stays the same during the training, and is stored with the trained
# model (`counts.safetensors`), which is evaluated under the same constraint.


def check_constraint(config: RunConfig, facts: ModelFacts) -> None:
    """Raise ConfigError if the model cannot be constrained to `method.partners` partners."""
    own = config.method
    if facts.fixed_routing:
        raise ConfigError(
            f"method.partners needs routers of single tokens: {facts.fixed_routing}. Leave it out."
        )
    if num_processes() > 1:
        raise ConfigError(
            f"method.partners={own.partners} trains in one process: start the command without torchrun."
        )
    check_partners(own.partners, facts)
    check_groups(config, facts)
    if own.profile is not None:
        check_profile(own.profile, read_pairs(own.profile)[0], facts)


def profile_identity(settings: Any) -> dict[str, Any]:
    """All that determines the profile except the model and the conversations; empty without a constraint."""
    if settings.partners is None:
        return {}
    if settings.profile is None:
        return {"profile": {"numerics": NUMERICS, "length": LENGTH}}
    return {"profile": digest_of(read_pairs(settings.profile)[0])}


def write_profile(folder: Path, config: RunConfig, data: Data, model: LoadedModel) -> dict[str, Any]:
    """Store the profile with a training. Without `method.profile` it is recorded on the training's conversations.

    Returns the profile's entries in training.json.
    """
    from safetensors.numpy import save

    given, on_test = config.method.profile, False
    if given is None:
        place, pairs_LEE = load_or_record(config, data, model)
    else:
        place, (pairs_LEE, on_test) = Path(given), read_pairs(given)
    write_atomically(folder / COUNTS, save({"pairs": pairs_LEE.numpy()}))
    return {"profile": place.name, "profile_sha256": digest_of(pairs_LEE), "test_profile": on_test}


def partners_in(folder: Path, count: int) -> Tensor:
    """bool [L, E, E]: the partners by the profile that is stored with a training (L layers, E experts)."""
    from moe_lab.routing.policies import partners_of

    return partners_of(read_pairs(folder / COUNTS)[0], count)
