"""Small random models with the tails of a few prompts, as the optimizers take them."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from moe_lab.methods.c3po import engine
from tests.support.brute_prompt_tail import FAMILIES
from tests.support.c3po import Setting, setting_of
from tests.support.models import small_model
from tests.support.tiers import first_fast


@pytest.fixture(autouse=True)
def flops_are_not_counted(request, monkeypatch) -> None:
    """Counting takes half of a short run. Tests of the counts ask for `flops`."""
    if "flops" not in request.fixturenames:
        monkeypatch.setattr(engine, "FlopCount", lambda: nullcontext(SimpleNamespace(total=1)))


@pytest.fixture
def flops() -> None:
    """In a test that has it, floating-point operations are counted."""


@pytest.fixture(params=first_fast(FAMILIES, 2))
def setting(request) -> Setting:
    """Of each family in turn.

    What tells them apart is in the replay, whose tests have all of them in the fast tier.
    """
    return setting_of(small_model(request.param))


@pytest.fixture
def olmoe() -> Setting:
    return setting_of(small_model("olmoe"))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """One output folder for all tests of a module, so that a reference set is built once."""
    return tmp_path_factory.mktemp("outputs")
