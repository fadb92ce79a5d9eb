"""The arguments of the function of a policy."""

import inspect
from collections.abc import Callable
from typing import Any


def takes_tokens(policy: Callable[..., Any]) -> bool:
    """Whether the third argument of a policy is `tokens`, without a default."""
    try:
        parameters = list(inspect.signature(policy).parameters.values())
    except ValueError:  # some functions of C code say nothing of their arguments
        return False
    if len(parameters) < 3:
        return False
    third = parameters[2]
    return third.name == "tokens" and third.default is inspect.Parameter.empty
