"""Broken by: a router of designs that is not said to be fixed, and why."""

from __future__ import annotations

import pytest

from moe_lab.models.designs.configuration import ROUTERS, MoeDesignConfig
from moe_lab.routing.designs import fixed_routing
from tests.support.designs import COMMON


@pytest.mark.parametrize("router", ROUTERS)
def test_all_but_token_choice_are_fixed(router):
    reason = fixed_routing(MoeDesignConfig(**COMMON, router=router))
    if router == "token":
        assert reason is None
    elif router == "expert":
        assert "experts choose their tokens" in reason
    else:
        assert f"all tokens of a {router}" in reason
