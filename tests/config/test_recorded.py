"""What is stored of a configuration. Broken by a secret in it, by a run without its value, and by an id that changes."""

import pytest

from moe_lab.config.recorded import interpolations, recorded, without_values
from moe_lab.config.schema import Config
from moe_lab.runs.config import compose_or_explain, to_configs

SECRET = "hunter2-secret"
TYPED = "system_instruction=${oc.env:MOE_LAB_TEST_SECRET}"


@pytest.fixture
def config(monkeypatch) -> Config:
    monkeypatch.setenv("MOE_LAB_TEST_SECRET", SECRET)
    monkeypatch.setenv("MOE_LAB_TEST_N", "4")
    monkeypatch.setenv("MOE_LAB_TEST_PATH", "my/profile.yaml")
    argv = [
        *("task=toy_math", TYPED, 'method.n="${oc.decode:${oc.env:MOE_LAB_TEST_N}}"'),
        *(
            "method.temperature=${oc.env:MOE_LAB_TEST_PATH}",
            "logger.tags=[a,'${oc.env:MOE_LAB_TEST_SECRET}']",
        ),
    ]
    [found] = to_configs(compose_or_explain(argv))
    return found


def test_the_run_has_the_value_and_the_record_what_was_typed(config):
    assert config.system_instruction == SECRET and config.method.temperature == "my/profile.yaml"
    stored = recorded(config)
    assert stored["system_instruction"] == "${oc.env:MOE_LAB_TEST_SECRET}"
    assert stored["method"]["temperature"] == "${oc.env:MOE_LAB_TEST_PATH}"
    assert stored["logger"]["tags"] == ["a", "${oc.env:MOE_LAB_TEST_SECRET}"]
    assert stored["method"]["n"] == 4, "tables read numbers"
    assert TYPED in stored["overrides"] and "interpolated" not in stored
    assert SECRET not in str(stored)


def test_results_do_not_have_it_either(config):
    content = {"configs": {"t": {"description": f"be {SECRET}", "n": 1}}, "list": [SECRET, None]}
    assert without_values(content, config) == {
        "configs": {"t": {"description": "be ${oc.env:MOE_LAB_TEST_SECRET}", "n": 1}},
        "list": ["${oc.env:MOE_LAB_TEST_SECRET}", None],
    }
    assert without_values(content, Config()) is content
    raw = {"a": "x", "b": ["y", "${z}"], "c": {"d": "${e}", "f": 1}}
    assert interpolations(raw) == {"b": ["y", "${z}"], "c.d": "${e}"}
