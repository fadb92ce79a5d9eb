"""`method.early_stopping={...}`: arguments of transformers' EarlyStoppingCallback.

https://huggingface.co/docs/transformers/main_classes/callback#transformers.EarlyStoppingCallback
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moe_lab.config.library_logs import hide_kernel_messages
from moe_lab.config.validators import at_least, coerce, unknown_key

if TYPE_CHECKING:
    from transformers import TrainerCallback

PREFIX = "method.early_stopping."


def checked_early_stopping(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in their types, with the defaults of those that are left out.

    Empty if none is given. Raises ConfigError for an unknown one, or an impossible value.
    """
    if not given:
        return {}
    from inspect import signature

    hide_kernel_messages()
    from transformers import EarlyStoppingCallback

    parameters = signature(EarlyStoppingCallback).parameters
    for name in given:
        if name not in parameters:
            raise unknown_key(f"{PREFIX}{name}", [f"{PREFIX}{known}" for known in parameters])
    arguments = {}
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        arguments[name] = coerce(value, type(parameter.default), f"{PREFIX}{name}")
    at_least(f"{PREFIX}early_stopping_patience", arguments["early_stopping_patience"], 1)
    at_least(f"{PREFIX}early_stopping_threshold", arguments["early_stopping_threshold"], 0)
    return arguments


def early_stopping_callback(arguments: Mapping[str, Any]) -> TrainerCallback:
    """transformers' callback, which stops the training at a validation.

    That step gets a checkpoint, from which the trained model is read.
    """
    from transformers import EarlyStoppingCallback

    class EarlyStopping(EarlyStoppingCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            """The original asks for TrainingArguments that evaluate at the end of epochs, where the
            fine-tuning does so by a callback of its own."""

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any
        ) -> None:
            super().on_evaluate(args, state, control, metrics, **kwargs)
            control.should_save |= control.should_training_stop

    return EarlyStopping(**arguments)


def stopped_early(state: Any) -> bool:
    """Whether the training of a TrainerState ended before its last step."""
    control = state.stateful_callbacks.get("TrainerControl", {})
    is_stopped = control.get("args", {}).get("should_training_stop", False)
    return is_stopped and state.global_step < state.max_steps
