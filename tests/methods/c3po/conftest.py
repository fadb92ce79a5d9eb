"""Small random models with the tails of a few prompts, as the optimizers take them."""

from __future__ import annotations

import pytest

from tests.support.brute_prompt_tail import FAMILIES
from tests.support.c3po import Setting, setting_of
from tests.support.models import small_model
from tests.support.tiers import by_family


@pytest.fixture(params=by_family(FAMILIES))
def setting(request) -> Setting:
    return setting_of(small_model(request.param))


@pytest.fixture
def olmoe() -> Setting:
    return setting_of(small_model("olmoe"))
