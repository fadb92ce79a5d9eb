"""The search space of a study. Broken by: a value at the bound of its search that is not named."""

from __future__ import annotations

import pytest

from moe_lab.runs.tuning.search import Search

SEARCH = {"metric": "perplexity", "n_trials": 1, "num_samples": 1, "max_temperature": 0.5, "skip_layers": 1}


@pytest.mark.parametrize(("found", "named"), [(0.5, True), (0.495, True), (0.48, False), (0.0, False)])
def test_a_temperature_at_the_bound_is_named(found, named):
    one = Search(tuning="uniform", moe_layers=4, **SEARCH)
    assert one.at_bound({"temperature": found}, 1.0) == (["temperature"] if named else [])
    each = Search(tuning="tpe", moe_layers=4, **SEARCH)
    assert each.at_bound({"layer_1": 0.1, "layer_2": found}, 1.0) == (["layer_2"] if named else [])


def test_a_scale_at_the_bound_is_named():
    search = Search(tuning="scale", moe_layers=2, logit_scale=True, given=[0.0, 0.0], **SEARCH)
    assert search.at_bound({}, 1.2) == [] and search.at_bound({}, 4.001) == ["logit_scale"]


def test_random_searches_the_space_of_tpe_in_another_study():
    tpe, drawn = (Search(tuning=name, moe_layers=4, **SEARCH) for name in ("tpe", "random"))
    assert drawn.parameters == tpe.parameters and drawn.identity == tpe.identity | {"tuning": "random"}


def test_studies_from_before_the_new_fields_keep_their_identity():
    assert Search(tuning="tpe", moe_layers=4, **SEARCH).identity == {
        "tuning": "tpe",
        "metric": "perplexity",
        "max_temperature": 0.5,
        "skip_layers": 1,
        "moe_layers": 4,
    }
