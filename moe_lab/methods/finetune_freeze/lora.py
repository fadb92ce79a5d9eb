"""LoRA by peft (Hu et al. 2021): an adapter on the frozen model.

peft adapts linear modules (`target_modules`) and single parameters (`target_parameters`). In transformers 5 routers are
modules of their own, and the experts of a layer are fused parameters [E, ...]. peft adapts both as parameters; each
fused expert gets the rank r. For some families peft takes names of experts and routers in `target_modules` as
parameters, and then leaves shared experts out.
"""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from moe_lab.config.schema import Config
from moe_lab.errors import reading
from moe_lab.methods.finetune_freeze.config import Lora
from moe_lab.methods.finetune_freeze.parameter_groups import empty_model
from moe_lab.models.source import load_config, model_source


def empty_to_train(config: Config, lora: Lora | None, dtype: str = "float32") -> Any:
    """The model of a run without weights, with its adapter unless `lora` is None.

    Raises ConfigError for what peft refuses.
    """
    model = empty_model(load_config(config.model, offline=config.offline)).to(getattr(torch, dtype))
    if lora is None:
        return model
    with reading("method.lora", says="is refused by peft"):
        return _adapted(model, lora, low_cpu_mem_usage=True)


def _adapted(model: Any, lora: Lora, **options: Any) -> Any:
    """A PeftModel with a new adapter."""
    from peft import LoraConfig, TaskType, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(task_type=TaskType.CAUSAL_LM, **asdict(lora))
        return get_peft_model(model, config, **options)


def with_lora(model: Any, lora: Lora, config: Config, commit: str | None) -> Any:
    """The run's model with an adapter drawn from the seed: a PeftModel whose adapter alone is trained, in float32."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        adapted = _adapted(model, lora)
    settings = adapted.peft_config[adapted.active_adapter]
    path = model_source(config.model)
    settings.base_model_name_or_path = str(Path(path).resolve()) if Path(path).is_dir() else path
    settings.revision = commit
    return adapted
