"""Time and memory of RoE and of a larger plain model, measured once and stored."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from moe_lab.config.schema import Config
from moe_lab.methods import get_method
from moe_lab.methods.method import Context, Method
from moe_lab.models.facts import resolve_device
from moe_lab.models.identity import model_identity
from moe_lab.models.memory import ModelPool
from moe_lab.models.source import load_config, model_source
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.locks import lock_on
from moe_lab.results.names import folder_name
from moe_lab.results.stored_files import whole_mapping
from moe_lab.results.versions import versions
from moe_lab.runs.experiments.larger_model import non_embedding_parameters, of_depth
from moe_lab.runs.experiments.timing import NEW_TOKENS, PROMPT, REPETITIONS, measure_in_turns
from moe_lab.runs.model_files import facts_of


def cost_measurement(
    config: Config, models: ModelPool, ratio: float, *, compute: bool = True
) -> Mapping[str, Any] | None:
    """The measurement of a RoE configuration and a plain model `ratio` times as large.

    It is computed unless it is stored; None with `compute=False` if it is not. It has the content
    of `_key`, `non_embedding_parameters` of both models, and what `measure_in_turns` gives of the
    base model (`base`), of the method (by its name), and of a model with `equivalent_layers` layers
    and random weights (`equivalent`).
    """
    method = get_method(config.method.name)(config.method)
    key = _key(config, method, ratio)
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    name = folder_name(config.model.name, f"n{config.method.n}", digest=digest)
    path = Path(config.output_dir) / "measurements" / f"{name}.json"
    stored = whole_mapping(path)
    if stored is not None or not compute:
        return stored
    loaded = models.get(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    base = get_method("base")(get_method("base").Config(name="base"))
    base_context = Context(config=replace(config, method=base.config))
    # two workers that measure at once would slow each other down
    with lock_on(path.parent / "timing.lock"):
        larger = of_depth(loaded, key["equivalent_layers"])
        settings = {
            "base": partial(base.open, loaded, base_context),
            config.method.name: partial(method.open, loaded, Context(config=config)),
            "equivalent": partial(base.open, larger, base_context),
        }
        measurement = key | {
            "non_embedding_parameters": non_embedding_parameters(loaded.model),
            "equivalent_non_embedding_parameters": non_embedding_parameters(larger.model),
            **measure_in_turns(settings),
        }
    write_file(path, json_text(measurement))
    return measurement


def _key(config: Config, method: Method, ratio: float) -> dict[str, Any]:
    """Everything that determines a measurement, as JSON. Loads no weights.

    The larger model has `ratio` times as many layers as the model (`equivalent_layers`).
    """
    facts = facts_of(config)
    architecture = load_config(config.model, offline=config.offline)
    layers = architecture.get_text_config().num_hidden_layers
    device = resolve_device(config.device)
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    else:
        device_name = f"{device.type} (threads: {torch.get_num_threads()})"
    return {
        "model": model_identity(model_source(config.model), config.model),
        "dtype": facts.dtype,
        "method": method.identity(facts),
        "layers": layers,
        "equivalent_layers": max(1, round(layers * ratio)),
        "new_tokens": NEW_TOKENS,
        "repetitions": REPETITIONS,
        "prompt": PROMPT,
        "device": device_name,
        "versions": versions(),
    }
