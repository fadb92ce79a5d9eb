"""LoRA by peft (Hu et al. 2021): an adapter on the frozen model, and the modules and parameters that it can adapt.

peft adapts linear modules (`target_modules`) and single parameters (`target_parameters`). In transformers 5 routers are
modules of their own, and the experts of a layer are fused parameters [E, ...]. peft adapts both as parameters; each
fused expert gets the rank r. For some families peft rewrites names of `target_modules` to parameters of experts, and
then leaves shared experts out. Such targets are refused, so that a training adapts exactly the named targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from moe_lab.errors import ConfigError, ModelError, first_line, reading
from moe_lab.methods.finetune_freeze.config import ALL_LINEAR, Lora
from moe_lab.methods.finetune_freeze.parameter_groups import empty_model, parameter_groups
from moe_lab.methods.trained import check_trained
from moe_lab.models.adapters import save_adapter
from moe_lab.models.distributed import sharded
from moe_lab.models.source import load_config, model_source
from moe_lab.results.atomic import obey_umask
from moe_lab.routing.hook import find_routers

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

MOST_NAMES = 12
"""Names in a message."""
Targets = tuple[str | set[str], set[str]]
"""(names of modules, or a pattern for them; names of parameters)."""


def check_lora(config: Config, lora: Lora) -> None:
    """Raise ConfigError for settings with which no adapter can be trained. Loads no weights."""
    key = f"method.lora.r={lora.r}"
    if sharded():
        raise ConfigError(
            f"{key}: FSDP splits the weights that the adapter belongs to. Start the command by torchrun, without it."
        )
    if config.model.peft is not None:
        raise ConfigError(
            f"{key} with model.peft={config.model.peft}: the new adapter would belong to a merged model that is not "
            "stored.\nMerge it once with peft's merge_and_unload(), save the model, and give model.path."
        )
    empty_adapted(config, lora)


def empty_adapted(config: Config, lora: Lora, dtype: str = "float32") -> Any:
    """The model of a run with its adapter, without weights. Raises ConfigError for targets that it cannot have."""
    model = empty_model(load_config(config.model, offline=config.offline)).to(getattr(torch, dtype))
    _check_names(model, lora)
    modules, routers = dict(model.named_modules()), {router.name for router in find_routers(model)}
    head = model.get_output_embeddings()
    settings = _settings(lora)
    requested = _targets(settings)
    with reading("method.lora", says="names targets that peft cannot adapt"):
        adapted = _wrapped(model, settings, low_cpu_mem_usage=True)
    _check_rewritten(lora, requested, _targets(settings))
    linear = set(adapted.base_model.targeted_module_names)
    for name in [*linear, *(each.rpartition(".")[0] for each in adapted.base_model.targeted_parameter_names)]:
        if name in linear & routers:
            raise ConfigError(
                f"method.lora.target_modules: {name} is a router, which returns more than logits. Leave it out, or "
                f"name its parameter: method.lora.target_parameters=[{name.rpartition('.')[2]}.weight]."
            )
        if isinstance(modules[name], nn.Embedding) or modules[name] is head:
            raise ConfigError(
                f"method.lora: {name} is an embedding or the output head, which may be one tensor. "
                "Leave it out."
            )
    return adapted


def _check_names(model: nn.Module, lora: Lora) -> None:
    """Raise ConfigError for an entry that no module or parameter of the model has as its name or the end of it."""
    listed = [] if isinstance(lora.target_modules, str) else lora.target_modules
    for key, targets, known, others in (
        ("target_modules", listed, model.named_modules(), linear_names),
        ("target_parameters", lora.target_parameters or [], model.named_parameters(), expert_names),
    ):
        names = [name for name, _ in known]
        for target in targets:
            if not any(name == target or name.endswith(f".{target}") for name in names):
                fused = expert_names(model) if key == "target_modules" else []
                hint = (
                    f"\nRouters and experts: method.lora.target_parameters={_shown(fused)}." if fused else ""
                )
                raise ConfigError(
                    f"method.lora.{key}: the model has no {target}. Among others it has "
                    f"{_shown(others(model))}.{hint}"
                )


def _check_rewritten(lora: Lora, requested: Targets, actual: Targets) -> None:
    """Raise ConfigError for targets that peft has changed, except `all-linear` without experts."""
    given = f"method.lora.target_modules={_shown(lora.target_modules)}"
    modules, parameters = actual
    if parameters != requested[1]:
        raise ConfigError(
            f"{given}: for this family peft takes names of experts and routers as parameters, and leaves out linear "
            "modules of the same names.\n"
            f"Name the parameters, method.lora.target_parameters={_shown(sorted(parameters))}, and in target_modules "
            f"the others, {_shown(sorted(modules))}."
        )
    if isinstance(lora.target_modules, str) and lora.target_modules != ALL_LINEAR and modules != requested[0]:
        raise ConfigError(
            f"{given}: for this family peft reads a regular expression as the names {_shown(sorted(modules))} in all "
            "layers. Give a list of names."
        )


def linear_names(model: Any) -> list[str]:
    """The last parts of the names of the linear modules, without the output head and routers."""
    left_out = {router.name for router in find_routers(model)}
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module is not head and name not in left_out
        }
    )


def expert_names(model: Any) -> list[str]:
    """The last two parts of the names of the routers' and experts' matrices."""
    groups = parameter_groups(model)
    members = {id(each) for group in ("router", "experts") for each in groups[group] if each.dim() > 1}
    names = {name for name, each in model.named_parameters() if id(each) in members}
    return sorted({".".join(name.split(".")[-2:]) for name in names})


def _settings(lora: Lora) -> Any:
    from peft import LoraConfig, TaskType

    assert lora.r is not None
    return LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        target_parameters=lora.target_parameters,
        use_rslora=lora.use_rslora,
    )


def _targets(settings: Any) -> Targets:
    modules = settings.target_modules
    return modules if isinstance(modules, str) else set(modules or ()), set(settings.target_parameters or ())


def _wrapped(model: Any, settings: Any, **options: Any) -> Any:
    from peft import get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(model, settings, **options)


def _shown(names: Sequence[str] | str) -> str:
    if isinstance(names, str):
        return names
    more = ", ..." if len(names) > MOST_NAMES else ""
    return f"[{', '.join(names[:MOST_NAMES])}{more}]"


def with_lora(model: Any, lora: Lora, config: Config, commit: str | None) -> Any:
    """The run's model with an adapter drawn from the seed: a PeftModel whose adapter alone is trained, in float32.

    Raises ModelError if the model does not run with it.
    """
    settings = _settings(lora)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        adapted = _wrapped(model, settings)
    path = model_source(config.model)
    settings.base_model_name_or_path = str(Path(path).resolve()) if Path(path).is_dir() else path
    settings.revision = commit
    _check_runs(adapted)
    return adapted


def _check_runs(adapted: Any) -> None:
    """Raise ModelError for a model whose code does not work on peft's wrappers: one pass, without a step."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=adapted.device)
    try:
        logits = adapted(input_ids=ids).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the model's code may read any attribute that peft's wrapper lacks
        reason = first_line(error)
    else:
        if logits.requires_grad:
            return
        reason = "its output does not depend on them"
    raise ModelError(
        f"method.lora: this model does not run with peft's adapters there: {reason}. Leave these targets out."
    )


def save_lora(adapted: Any, tokenizer: Any, folder: Path) -> None:
    """Save the adapter in peft's format, in float32, with the tokenizer. Raises TrainingError for NaN or infinity."""
    check_trained(adapted)
    save_adapter(adapted, folder)
    tokenizer.save_pretrained(folder)
    obey_umask(folder)
