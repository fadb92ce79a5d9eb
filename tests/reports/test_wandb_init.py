"""`logger.init`: arguments of wandb.init.

Broken by: an argument that is neither taken nor refused, a secret in a file, two spellings of one
key, an argument that does not arrive.
"""

from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
import wandb

from moe_lab.config.schema import Config, LoggerConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.base import Base
from moe_lab.reports.loggers import WandbLogger
from moe_lab.reports.wandb_init import REFUSED, SAME_KEYS, SECRETS, checked_init

VALUES: dict[str, Any] = {
    "config_exclude_keys": ["output_dir"],
    "config_include_keys": ["seed"],
    "force": False,
    "notes": "second try",
    "save_code": True,
    "settings": {"init_timeout": 90.0, "x_label": "rank 0"},
}


def test_every_argument_is_taken_or_refused_with_a_reason():
    known = set(signature(wandb.init).parameters)
    assert set(VALUES) | set(SAME_KEYS) | set(REFUSED) == known
    for name, reason in REFUSED.items():
        assert len(reason) > 15
        with pytest.raises(ConfigError, match=f"logger.init.{name} is not taken: "):
            checked_init({name: "x"})


def test_every_other_argument_arrives(tmp_path, monkeypatch):
    given = checked_init(VALUES)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "init", lambda **arguments: seen.update(arguments))
    logger = LoggerConfig(name="wandb", init=given)
    config = Config(method=Base.Config(name="base"), logger=logger, output_dir=str(tmp_path))
    WandbLogger(config, "run", "name", None, "offline", None)._init("offline", tmp_path)
    for name, value in VALUES.items():
        if name != "settings":
            assert seen[name] == value
    assert seen["settings"].init_timeout == 90.0
    assert seen["settings"].x_label == "rank 0"
    assert seen["settings"].silent, "ours, where nothing else is given"
    assert not seen["settings"].disable_code


@pytest.mark.parametrize("key", ["project", "entity", "group", "mode"])
def test_a_key_of_the_logger_may_be_given_either_way(key):
    value = "offline" if key == "mode" else "mine"
    by_init = LoggerConfig(name="wandb", init={key: value})
    assert by_init == LoggerConfig(name="wandb", **{key: value})
    with pytest.raises(ConfigError, match=f"logger.init.{key}=.*logger.{key}=.*same setting"):
        replace(by_init, init={key: "online"})


@pytest.mark.parametrize("secret", [*SECRETS, "base_url"])
def test_a_secret_is_refused_and_not_shown(secret):
    with pytest.raises(ConfigError, match="belongs in the environment") as raised:
        checked_init({"settings": {secret: "https://me:secret7391@host"}})
    assert "secret7391" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"note": "x"}, "Unknown argument logger.init.note. Did you mean 'notes'"),
        ({"save_code": "maybe"}, "save_code=maybe"),
        ({"settings": {"init_timeouts": 3}}, "Did you mean 'init_timeout'"),
        ({"settings": {"init_timeout": "long"}}, "init_timeout: "),
        ({"settings": None}, "settings: expected a mapping"),
        ({"settings": {"run_id": "x"}}, "settings.run_id is not taken: it is the argument id"),
        ({"settings": {"entity": "x"}}, "settings.entity is not taken: .* logger.init.entity"),
        ({"settings": {"resume": "never"}}, "settings.resume is not taken"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        checked_init(given)


def test_it_needs_a_logger():
    with pytest.raises(ConfigError, match="no effect with logger=none"):
        LoggerConfig(init={"notes": "x"})
