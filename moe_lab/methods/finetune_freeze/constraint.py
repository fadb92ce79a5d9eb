"""C2R's constraint of a fine-tuning (`method=finetune-freeze method.partners=`).

Its profile is that of the untrained model. It stays the same during the training, and is stored with the trained model
(`counts.safetensors`), which is evaluated under the same constraint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods.c2r import (
    NUMERICS,
    check_groups,
    check_partners,
    check_profile,
    digest_of,
    load_or_record,
    read_pairs,
)
from moe_lab.methods.data_files import Data
from moe_lab.methods.recorded_profiles import LENGTH
from moe_lab.metrics.stored import COUNTS
from moe_lab.models.distributed import num_processes
from moe_lab.results.atomic import write_atomically

if TYPE_CHECKING:
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel
    from moe_lab.routing.policies import PartnersOnly


def check_constraint(config: Config, facts: ModelFacts) -> None:
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


def write_profile(folder: Path, config: Config, data: Data, model: LoadedModel) -> dict[str, Any]:
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


def constraint_in(folder: Path, count: int) -> PartnersOnly:
    """The policy with `count` partners by the profile that is stored with a training."""
    from moe_lab.routing.policies import PartnersOnly, partners_of

    return PartnersOnly(partners_of(read_pairs(folder / COUNTS)[0], count))
