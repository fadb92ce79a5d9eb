"""Fine-tuning under the collaboration constraint of C2R (Zhang et al. 2025), and evaluation under the same one.

The profile, which says whose partners experts are, is of the untrained model. It stays the same while the model trains,
and is stored with the trained model (`counts.safetensors`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError
from moe_lab.methods.c2r.checks import check_groups, check_partners, check_profile
from moe_lab.metrics.stored_metrics import COUNTS
from moe_lab.models.distributed import num_processes

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config
    from moe_lab.methods.c2r.lm import ConstrainedLM
    from moe_lab.methods.conversations.read import Data
    from moe_lab.methods.finetune_freeze.config import FinetuneConfig
    from moe_lab.methods.method import Context
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


def check_constraint(config: Config, facts: ModelFacts) -> None:
    """Raise ConfigError where the model cannot be constrained as `method.partners` says."""
    own: FinetuneConfig = config.method
    assert own.partners is not None
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
        check_profile(own.profile, _given(own.profile)[0], facts)


def profile_identity(own: FinetuneConfig) -> dict[str, Any]:
    """What determines the profile beside the model and the conversations; empty without a constraint."""
    from moe_lab.methods.c2r.profiles import LENGTH, NUMERICS, digest_of

    if own.partners is None:
        return {}
    if own.profile is None:
        return {"profile": {"numerics": NUMERICS, "length": LENGTH}}
    return {"profile": digest_of(_given(own.profile)[0])}


def _given(path: str) -> tuple[Tensor, bool]:
    from moe_lab.methods.c2r.profiles import read_pairs

    return read_pairs(path)


def write_profile(folder: Path, config: Config, data: Data, model: LoadedModel) -> dict[str, Any]:
    """Store the profile with a training, recorded on its conversations where none is given. Returns what it is."""
    from safetensors.numpy import save

    from moe_lab.methods.c2r.profiles import digest_of, load_or_record
    from moe_lab.results.atomic import write_atomically

    given, on_test = config.method.profile, False
    if given is None:
        place, pairs_LEE = load_or_record(config, data, model)
    else:
        place, (pairs_LEE, on_test) = Path(given), _given(given)
    write_atomically(folder / COUNTS, save({"pairs": pairs_LEE.numpy()}))
    return {"profile": place.name, "profile_sha256": digest_of(pairs_LEE), "test_profile": on_test}


def partners_in(folder: Path, count: int) -> Tensor:
    """bool [L, E, E]: the partners by the profile that is stored with a training."""
    from moe_lab.routing.partners import partners_of

    return partners_of(_given(str(folder / COUNTS))[0], count)


@contextmanager
def constrained(model: LoadedModel, context: Context, folder: Path, count: int) -> Iterator[ConstrainedLM]:
    """The LM of a model that was trained in `folder` under a constraint, under the same one."""
    from moe_lab.methods.base import engine_options
    from moe_lab.methods.c2r.lm import ConstrainedLM
    from moe_lab.routing import routed
    from moe_lab.routing.partners import PartnersOnly

    policy = PartnersOnly(partners_in(folder, count))
    with routed(model.model, policy):
        yield ConstrainedLM(model.model, model.tokenizer, policy, **engine_options(context.config))
