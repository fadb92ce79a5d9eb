"""Breaks if a value that float32 cannot hold, or hold multiplied, reaches a tensor."""

from __future__ import annotations

import pytest

from moe_lab.config.validators import above_zero, at_least, coerce
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from tests.support.command import run_command


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


@pytest.mark.parametrize(
    "line",
    [
        "method=roe method.temperature=1e39",
        "method=roe method.temperature=[0,1e39,0,0,0,0,0,0]",
        "method=c3po method.learning_rate=[1e39,1]",
        "method=c3po method.bandwidth=1e39",
        "method=finetune-freeze method.learning_rate=1e38",
        "method=finetune-freeze method.phases=[{lr:1e38}]",
        "method=pretrain method.learning_rate=1e38",
        "method=soft-prompt method.learning_rate=1e38",
        "method=prefix-tuning method.learning_rate=1e38",
        "method=base gen_kwargs={temperature:1e39}",
    ],
)
def test_the_command_refuses_them(capsys, tmp_path, line):
    ended = run_command(
        capsys, *line.split(), "model=tiny", "task=toy_choice", "limit=1", f"output_dir={tmp_path}"
    )
    assert ended.code == 2 and "Traceback" not in ended.err, ended.err
    assert "1e+3" in ended.err and len(ended.err.splitlines()) <= 3
