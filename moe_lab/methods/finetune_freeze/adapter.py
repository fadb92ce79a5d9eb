"""`method.peft={...}`: a configuration of peft, under its own names. An adapter is trained in place
of the weights.

https://huggingface.co/docs/peft/package_reference/lora#peft.LoraConfig
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from moe_lab.config.doors import check_name, library_value
from moe_lab.config.library_logs import hide_kernel_messages
from moe_lab.config.validators import did_you_mean, one_of
from moe_lab.errors import ConfigError, first_line, need_package
from moe_lab.models.text_part import has_towers, tower_modules

PAGE = "https://huggingface.co/docs/peft/package_reference/lora#peft.LoraConfig"
_OF_MODEL = "it is the model that is trained. Use model.path="
_NEEDS_DATA = "it computes the adapter's beginning from data before the training"
REFUSED = {
    "alora_invocation_tokens": "the tokens after which the adapter acts are not in every prompt",
    "arrow_config": "it routes between adapters, and one is trained here",
    "auto_mapping": _OF_MODEL,
    "base_model_name_or_path": _OF_MODEL,
    "corda_config": _NEEDS_DATA,
    "eva_config": _NEEDS_DATA,
    "inference_mode": "the adapter is trained",
    "layer_replication": "it changes the number of the model's layers",
    "loftq_config": "it changes the weights below the adapter, which are not saved",
    "lora_ga_config": _NEEDS_DATA,
    "megatron_config": "it names code, which is never run",
    "megatron_core": "it names code, which is never run",
    "peft_version": "it is that of the installed package",
    "revision": "it is that of the model. Use model.revision=",
    "runtime_config": "it is that of one process, and not of the adapter",
    "task_type": "causal language models are trained: CAUSAL_LM",
}
"""The fields that are not taken, with the reason."""
OTHER_TYPES = {
    "ADALORA": "its ranks change by a schedule of steps that it has to be told of",
    "FROD": "it decomposes the weights before they are read",
    "POLY": "it needs the number of the task with every pass",
    "SHADOW": "it trains a second model next to this one",
    "SHIRA": "it chooses weights before they are read",
    "XLORA": "it mixes adapters that are trained already",
}
"""Types of peft that are not trained here, with the reason."""
NOT_MERGED = ("BEFT", "LILY")
"""Types whose adapters peft does not merge into the weights."""
CHANGES_WEIGHTS = ("corda", "eva", "loftq", "lora_ga", "olora", "pissa")
"""Beginnings of `init_lora_weights` that change the weights below the adapter or need data."""
SETS = ("exclude_modules", "target_modules")
"""Fields in whose lists the order does not matter: peft makes sets of them."""


def checked_peft(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in their types, with `peft_type`, LORA if it is left out, and without those that
    have their default.

    Empty if none is given. Raises ConfigError for an unknown field or type, a refused one, and a
    value of another type.
    """
    if not given:
        return {}
    need_package("peft", "peft", "method.peft")
    kind, config_class = _config_class(given.get("peft_type", "LORA"))
    known = [field.name for field in fields(config_class)]
    hints = get_type_hints(config_class)
    checked: dict[str, Any] = {"peft_type": kind}
    for name, value in given.items():
        key = f"method.peft.{name}"
        if name == "peft_type":
            continue
        check_name(key, known, REFUSED, PAGE, f"{kind} field")
        typed = library_value(key, value, hints[name])
        if name in SETS and isinstance(typed, list):
            typed = sorted(set(typed))
        if typed != _default(config_class, name):
            checked[name] = typed
    start = str(checked.get("init_lora_weights", ""))
    if start.startswith(CHANGES_WEIGHTS):
        raise ConfigError(
            f"method.peft.init_lora_weights={start}: it changes the weights below the adapter, "
            "which are not saved, or reads data first. Leave it out, or use gaussian or orthogonal."
        )
    return checked


def _default(config_class: Any, name: str) -> Any:
    """The value of a field that is left out."""
    field = config_class.__dataclass_fields__[name]
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _config_class(name: str) -> tuple[str, Any]:
    """The name of a type of peft in capitals, and the class of its configuration.

    Raises ConfigError for an unknown type, and one that is not trained here.
    """
    hide_kernel_messages()
    from peft import PeftType, PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind = str(name).upper()
    one_of("method.peft.peft_type", kind, [member.value for member in PeftType])
    config_class = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)]
    reason = OTHER_TYPES.get(kind)
    if issubclass(config_class, PromptLearningConfig):
        reason = "it adds tokens to every prompt. Use method=soft-prompt or method=prefix-tuning"
    if reason is not None:
        raise ConfigError(f"method.peft.peft_type={kind} is not taken: {reason}.")
    return kind, config_class


def with_adapter(model: Any, settings: Mapping[str, Any], seed: int) -> Any:
    """A PeftModel of the model, whose weights are frozen, with an adapter drawn from the seed.

    Args:
        model: changed in place; may be on the meta device.
        settings: `checked_peft`.

    Raises ConfigError with peft's reason, and for a module or parameter that the model does not
    have.
    """
    from peft import get_peft_model
    from transformers import set_seed

    _, config_class = _config_class(settings["peft_type"])
    arguments = {name: value for name, value in settings.items() if name != "peft_type"}
    if has_towers(model.config):
        given = arguments.get("exclude_modules")
        arguments["exclude_modules"] = _excluded(given, tower_modules(model))
    parameters = dict(model.named_parameters())
    is_empty = next(iter(parameters.values())).is_meta
    set_seed(seed)
    try:
        with warnings.catch_warnings():
            # peft calls deprecated functions of transformers
            warnings.simplefilter("ignore", FutureWarning)
            config = config_class(task_type="CAUSAL_LM", **arguments)
            wrapped = get_peft_model(model, config, low_cpu_mem_usage=is_empty)
    except (TypeError, ValueError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"method.peft: {first_line(error)}") from error
    modules = [name for name, _ in wrapped.get_base_model().named_modules()]
    _check_names("target_modules", config, modules)
    _check_names("modules_to_save", config, modules)
    _check_names("target_parameters", config, parameters)
    return wrapped


def _excluded(given: str | list[str] | None, towers: str) -> str:
    """An expression for peft's `exclude_modules`: the modules that are given, and the towers of an
    image-and-text model, which no adapter is trained for.

    Args:
        given: as peft takes it: an expression, or a list of the ends of names.
    """
    if not given:
        return towers
    if isinstance(given, str):
        return f"{towers}|{given}"
    ends = "|".join(re.escape(name) for name in given)
    return rf"{towers}|(.*\.)?({ends})"


def _check_names(field: str, config: Any, names: Iterable[str]) -> None:
    """Raise ConfigError for a listed name that the model does not have, where peft finds others.

    Args:
        names: those of the model, with dots.
    """
    listed = getattr(config, field, None)
    if isinstance(listed, str):  # an expression, which peft matches
        return
    whole_names = [f".{name}" for name in names]
    last_parts = {name.rpartition(".")[2] for name in whole_names}
    for name in sorted(listed or []):
        if not any(whole_name.endswith(f".{name}") for whole_name in whole_names):
            raise ConfigError(
                f"method.peft.{field}: the model has no {name}.{did_you_mean(name, last_parts)}"
            )
