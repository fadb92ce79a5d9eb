"""The designs of `models/designs` whose routing no policy may change, with the reason."""

from __future__ import annotations

from typing import Any

_UNIT = (
    "its router decides once for all tokens of a {unit}, at the first one. Another decision for a single token (noise, "
    "given experts) would break up the {unit}, and text that begins inside it lacks its decision"
)
FIXED = {
    "word": _UNIT.format(unit="word"),
    "sentence": _UNIT.format(unit="sentence"),
    "word-hash": "its router takes the experts of a word by the id of its first token, and has no scores",
    "expert": "its experts choose their tokens: a token has no fixed number of experts, and its routing depends on "
    "later tokens",
}
"""Reasons by the configuration's `router`."""


def fixed_routing(config: Any) -> str | None:
    """Why no policy may change the routing of this design; None where one may."""
    return FIXED.get(config.router)
