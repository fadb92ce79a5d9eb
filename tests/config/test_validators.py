"""Breaks if a value that float32 cannot hold, or hold multiplied, reaches a tensor."""

from __future__ import annotations

import pytest

from moe_lab.config.validators import above_zero, at_least, coerce
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method


@pytest.mark.parametrize("value", [1e39, -1e39, 3e38, 10**40, [0.1, 1e31], {"temperature": 1e31}])
def test_numbers_beyond_float32_are_refused(value):
    annotation = float | list[float] | dict[str, float]
    with pytest.raises(ConfigError, match="at most 1e[+]30"):
        coerce(value, annotation, "key")


def test_bounds_name_the_largest_number():
    for check in (above_zero, lambda key, value: at_least(key, value, 0)):
        check("key", 1e30)
        with pytest.raises(ConfigError, match="at most 1e[+]30"):
            check("key", 1e31)


@pytest.mark.parametrize("temperature", [1e39, [0.0, 1e39], float("inf"), float("nan")])
def test_temperatures_in_python(temperature):
    with pytest.raises(ConfigError, match="at most 1e[+]30"):
        get_method("roe").Config(name="roe", temperature=temperature)
