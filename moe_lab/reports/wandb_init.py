"""`logger.init={...}`: arguments of `wandb.init`, under its own names.

https://docs.wandb.ai/ref/python/init
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, get_type_hints

from moe_lab.config.doors import URL_WITH_PASSWORD, check_name, library_value
from moe_lab.errors import ConfigError

PAGE = "https://docs.wandb.ai/ref/python/init"
SAME_KEYS = ("project", "entity", "group", "tags", "mode")
"""Arguments that are keys of `logger`."""
_ONE_RUN = "a W&B run belongs to one folder, and continues with it"
REFUSED = {
    "allow_val_change": _ONE_RUN,
    "anonymous": "wandb no longer has it",
    "config": "it is the configuration of the run",
    "dir": "files of W&B are in output_dir=, or in WANDB_DIR",
    "fork_from": _ONE_RUN,
    "id": _ONE_RUN,
    "job_type": "it says whether the W&B run is a run, a study, an experiment or a command",
    "monitor_gym": "no environment is run",
    "name": "it is the folder's name",
    "reinit": _ONE_RUN,
    "resume": _ONE_RUN,
    "resume_from": _ONE_RUN,
    "sync_tensorboard": "no TensorBoard files are written",
    "tensorboard": "no TensorBoard files are written",
}
"""The arguments that are not taken, with the reason."""
SECRETS = (
    "api_key",
    "azure_account_url_to_access_key",
    "credentials_file",
    "http_proxy",
    "https_proxy",
    "identity_token_file",
    "x_extra_http_headers",
    "x_proxies",
    "x_stats_open_metrics_http_headers",
)
"""Settings of W&B that are secrets, may have one in them, or name a file with one."""
SETTINGS_ELSEWHERE = (
    "root_dir",
    "run_group",
    "run_id",
    "run_job_type",
    "run_name",
    "run_notes",
    "run_tags",
)
"""Settings of W&B that are arguments of wandb.init by another name."""


def checked_init(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in their types.

    Raises ConfigError for an unknown argument or setting, a refused one, a secret, and a value of
    another type.

    Args:
        given: without SAME_KEYS, which `LoggerConfig` has made keys of `logger`.
    """
    import wandb

    parameters = signature(wandb.init).parameters
    hints = get_type_hints(wandb.init)
    checked = {}
    for name, value in given.items():
        key = f"logger.init.{name}"
        check_name(key, parameters, REFUSED, PAGE, "argument")
        if name == "settings":
            checked[name] = _checked_settings(value)
        else:
            checked[name] = library_value(key, value, hints[name])
    return checked


def _checked_settings(given: Any) -> dict[str, Any]:
    """Settings of W&B. Raises ConfigError for an unknown one, a secret, and an impossible value."""
    import wandb
    from pydantic import ValidationError

    known = wandb.Settings.model_fields
    if not isinstance(given, Mapping):
        raise ConfigError("logger.init.settings: expected a mapping.")
    arguments = [*signature(wandb.init).parameters, *SETTINGS_ELSEWHERE]
    for name, value in given.items():
        key = f"logger.init.settings.{name}"
        if name in arguments and name != "save_code":
            argument = name.removeprefix("run_").removeprefix("root_")
            raise ConfigError(
                f"{key} is not taken: it is the argument {argument} of wandb.init. See "
                f"logger.init.{argument}."
            )
        if name in SECRETS or URL_WITH_PASSWORD.search(str(value)):
            raise ConfigError(f"{key} is not taken: a secret belongs in the environment.")
        check_name(key, known, {}, PAGE, "setting")
    try:
        wandb.Settings(**given)
    except ValidationError as error:
        [first, *_] = error.errors()
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"logger.init.settings.{name}: {first['msg']}.") from error
    return dict(given)
