"""Routing policies on the routers of a model.

`routed(model, policy)` installs a policy on every router and restores the model on exit.
`record(model)` records routing decisions. `gumbel` is the keyed noise that RoE adds to router
logits.
"""

from moe_lab.routing.families import Family, family_of, family_of_type, supported
from moe_lab.routing.hook import routed
from moe_lab.routing.noise import GumbelTopK, document_key, gumbel
from moe_lab.routing.policy import Policy, PolicyFunction
from moe_lab.routing.record import record
from moe_lab.routing.router import Router, find_routers
from moe_lab.routing.rules import Routing
from moe_lab.routing.samples import NoisyTokens, OtherExperts, SamplePolicy
from moe_lab.routing.tokens import PolicyTokens

__all__ = [
    "Family",
    "GumbelTopK",
    "NoisyTokens",
    "OtherExperts",
    "Policy",
    "PolicyFunction",
    "PolicyTokens",
    "Router",
    "Routing",
    "SamplePolicy",
    "document_key",
    "family_of",
    "family_of_type",
    "find_routers",
    "gumbel",
    "record",
    "routed",
    "supported",
]
