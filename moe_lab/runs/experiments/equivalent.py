"""Time and memory of RoE and of the plain model with the same loss by the scaling law, measured once and stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config
from moe_lab.methods import get_method
from moe_lab.methods.method import Context
from moe_lab.results.atomic import write_json, writing
from moe_lab.results.identity import folder_name
from moe_lab.results.stored_files import DamagedError, read_mapping, set_aside
from moe_lab.results.versions import versions
from moe_lab.runs.experiments.deepen import non_embedding_parameters, of_depth, scaled_depth
from moe_lab.runs.experiments.timing import NEW_TOKENS, PROMPT, REPETITIONS, measure_in_turns

if TYPE_CHECKING:
    import torch

    from moe_lab.methods.method import Method
    from moe_lab.models.load import LoadedModel
    from moe_lab.models.pool import ModelPool


def measured(
    config: Config, models: ModelPool, ratio: float, stored_only: bool = False
) -> dict[str, Any] | None:
    """The measurement of a RoE configuration and a plain model `ratio` times as large, stored or new.

    None with `stored_only` if it is not stored. Has the content of `_key`, `non_embedding_parameters` of both models,
    and a `Generation` of the untouched model (`base`), of RoE (`roe`), and of one with `equivalent_layers` layers and
    random weights (`equivalent`).
    """
    method = get_method(config.method.name)(config.method)
    key = _key(config, method, ratio)
    path = Path(config.output_dir) / "measurements" / _file_name(config, key)
    try:
        stored = read_mapping(path)
    except DamagedError as error:
        set_aside(path, error.problem)
        stored = None
    if stored is not None or stored_only:
        return stored
    measurement = key | _measure(config, models.get(config), method, key["equivalent_layers"])
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, measurement)
    return measurement


def _key(config: Config, method: Method, ratio: float) -> dict[str, Any]:
    """All that determines a measurement. Loads no weights."""
    from moe_lab.models.facts import model_facts, resolve_device
    from moe_lab.models.identity import model_identity
    from moe_lab.models.source import load_config, model_source

    facts = model_facts(config.model, dtype=config.dtype, device=config.device, offline=config.offline)
    layers = load_config(config.model, offline=config.offline).num_hidden_layers
    return {
        "model": model_identity(model_source(config.model), config.model),
        "dtype": facts.dtype,
        "method": method.identity(facts),
        "layers": layers,
        "equivalent_layers": scaled_depth(layers, ratio),
        "new_tokens": NEW_TOKENS,
        "repetitions": REPETITIONS,
        "prompt": PROMPT,
        "device": _device_name(resolve_device(config.device)),
        "versions": versions(),
    }


def _measure(config: Config, loaded: LoadedModel, method: Method, layers: int) -> dict[str, Any]:
    larger = of_depth(loaded, layers)
    plain = get_method("base")(get_method("base").Config(name="base"))
    untouched = Context(config=replace(config, method=plain.config))
    generations = measure_in_turns(
        {
            "base": partial(plain.open, loaded, untouched),
            "roe": partial(method.open, loaded, Context(config=config)),
            "equivalent": partial(plain.open, larger, untouched),
        }
    )
    sizes = [non_embedding_parameters(one.model) for one in (loaded, larger)]
    return {
        "non_embedding_parameters": sizes[0],
        "equivalent_non_embedding_parameters": sizes[1],
        **{name: one.plain() for name, one in generations.items()},
    }


def _device_name(device: torch.device) -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} (threads: {torch.get_num_threads()})"


def _file_name(config: Config, key: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    return f"{folder_name(config.model.name, f'n{config.method.n}', digest=digest)}.json"
