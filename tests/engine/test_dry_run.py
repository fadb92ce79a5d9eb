"""The planned peak of a run, against what is counted by hand. `tests/runs/test_accelerator.py` meters it.

Broken by storages that the plan does not see, by batches or steps that take more than those that are planned.
"""

import pytest
import torch

from moe_lab.engine.dry_run import PASS_TOKENS, planned_peak, rehearse
from moe_lab.engine.footprint import footprint_of, meta_model
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.pass_size import PASS_SHARE
from moe_lab.engine.planned import Asked
from moe_lab.models.memory import free_memory, weight_bytes
from tests.support.models import make_model, small_config


def peak(ensemble: Ensemble, prompt: int, new: int) -> tuple[int, torch.nn.Module]:
    model = meta_model(make_model("olmoe").config, torch.float32)
    asked = Asked(generated={"": {"": (tuple(range(prompt)), (new,))}})
    return planned_peak(model, lambda: rehearse(model, ensemble, asked, 1)), model


@pytest.mark.parametrize(
    ("ensemble", "times"),
    [
        pytest.param(Ensemble(), 1, marks=pytest.mark.slow),
        pytest.param(Ensemble(4), 1, marks=pytest.mark.slow),
        (Ensemble(4, cache="standard"), 4),
    ],
)
def test_a_new_token_takes_its_keys_and_values(ensemble, times):
    """Those of every sample where each has its own. What a step reads is added, which is less than half of it here."""
    (less, model), (more, _) = peak(ensemble, 8, 250), peak(ensemble, 8, 500)
    slots = 250 * times * footprint_of(model).slot
    assert slots <= more - less < 1.5 * slots


def test_batches_with_other_beginnings_are_planned():
    """The longest prompts share nearly all of their tokens, so that the passes of the next batch are larger."""
    model = meta_model(make_model("olmoe").config, torch.float32)
    alike = [(*range(100), last) for last in range(8)]
    others = [(first, *range(99)) for first in range(100, 108)]

    def planned(prompts) -> int:
        asked = Asked(generated={"": {str(prompt): (prompt, (2,)) for prompt in prompts}})
        return planned_peak(model, lambda: rehearse(model, Ensemble(), asked, 8))

    assert planned(alike) < planned(others) <= planned(alike + others)


def test_weights_are_part_of_it_and_nothing_is_left(tmp_path):
    size, model = peak(Ensemble(), 8, 2)
    device = PASS_TOKENS * footprint_of(model).token / PASS_SHARE
    assert weight_bytes(model) < size < weight_bytes(model) + device, "the pass takes a part of what is free"
    with pytest.raises(LookupError):
        free_memory(torch.device("meta"))


def test_a_family_whose_code_reads_values_has_no_plan():
    model = meta_model(small_config("jetmoe"), torch.float32)
    with pytest.raises(NotImplementedError):
        planned_peak(model, lambda: None)


def test_a_model_without_weights_leaves_the_configuration_as_it_is():
    config = small_config("olmoe")
    before = config.to_json_string(use_diff=False)
    assert meta_model(config, torch.bfloat16).dtype == torch.bfloat16
    assert config.to_json_string(use_diff=False) == before
