"""Time and memory of RoE and of the plain model with the same loss by the scaling law, measured once and stored."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM

from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.methods import get_method
from moe_lab.methods.method import Context, Method
from moe_lab.models.facts import resolve_device
from moe_lab.models.identity import model_identity
from moe_lab.models.memory import ModelPool, memory_bytes, peak_memory_bytes, reset_peak_memory, weight_bytes
from moe_lab.models.source import load_config, model_source
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.identity import folder_name, versions
from moe_lab.results.lock import lock_on
from moe_lab.results.stored_files import whole_mapping
from moe_lab.runs.evaluation.result_block import energy_joules
from moe_lab.runs.prepare import facts_of

if TYPE_CHECKING:
    from moe_lab.models.load import LoadedModel

# A plain model of another depth with random weights, to measure the time and memory of a larger model


def of_depth(loaded: LoadedModel, layers: int) -> LoadedModel:
    """The model's architecture with another number of layers and random weights, on its device, in its dtype."""
    config = deepcopy(loaded.model.config)
    own = config.num_hidden_layers
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index % own] for index in range(layers)]
    torch.manual_seed(0)
    with torch.device(loaded.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=loaded.model.dtype, experts_implementation=config._experts_implementation
        )
    model.generation_config = deepcopy(loaded.model.generation_config)
    return replace(loaded, model=model.eval())


def non_embedding_parameters(model: Any) -> int:
    """The model size of Kaplan et al. (2020): parameters without the embedding and the output head."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    excluded = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in excluded)


# Latency and memory of generating a fixed number of tokens, measured for several settings in turns

NEW_TOKENS = 128
"""The paper's latency is the time for 128 tokens."""
REPETITIONS = 5
PROMPT = "Question: Ann has 3 pens and buys 2 more. How many pens does she have now?\nAnswer:"


Generation = tuple[float, int, float | None]
"""(seconds, bytes of the weights and of the peak of additional memory, joules or None without a meter)."""


def repeated(rounds: Sequence[Generation]) -> dict[str, float | None]:
    """Several generations as JSON: medians of time and energy, the fastest and the slowest, and the greatest memory."""
    seconds, memory, energies = zip(*rounds, strict=True)
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "memory_bytes": max(memory),
        "energy_joules": None if None in energies else statistics.median(energies),
    }


def measure_in_turns(
    settings: Mapping[str, Callable[[], AbstractContextManager[EngineLM]]],
    new_tokens: int = NEW_TOKENS,
    repetitions: int = REPETITIONS,
) -> dict[str, dict[str, float | None]]:
    """Measure every setting once per round, so that other load affects all equally. The first round is a warm-up.

    `settings` has a context manager that opens the LM, by name. Batch 1, greedy, no end token.
    """
    rounds: dict[str, list[Generation]] = {name: [] for name in settings}
    with ExitStack() as stack:
        models = {name: stack.enter_context(opened()) for name, opened in settings.items()}
        for _ in range(repetitions + 1):
            for name, lm in models.items():
                rounds[name].append(_generate_once(lm, new_tokens))
    return {name: repeated(measured[1:]) for name, measured in rounds.items()}


def _generate_once(lm: EngineLM, new_tokens: int) -> Generation:
    lm.progress = False
    ends = lm.model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    options = {"until": [], "max_gen_toks": new_tokens, "do_sample": False, "suppress_tokens": ends or None}
    before, device = lm.cost["tokens_out"], lm.device
    answer = partial(lm.answer, "generate_until", [Request((PROMPT, options))], lambda *_: None)
    reset_peak_memory(device)
    held, drawn, start = memory_bytes(device), energy_joules(device), time.perf_counter()
    answer()
    seconds, now = time.perf_counter() - start, energy_joules(device)
    generated = lm.cost["tokens_out"] - before
    if generated != new_tokens:
        raise RuntimeError(
            f"{generated} tokens were generated instead of {new_tokens}: this is no measurement."
        )
    memory = weight_bytes(lm.model) + max(0, peak_memory_bytes(device) - held)
    return seconds, memory, None if now is None or drawn is None else now - drawn


# Time and memory of RoE and of the plain model with the same loss by the scaling law, measured once and stored


def measured(
    config: Config, models: ModelPool, ratio: float, *, compute: bool = True
) -> Mapping[str, Any] | None:
    """The stored or new measurement of a RoE configuration and a plain model `ratio` times as large.

    None with `compute=False` if it is not stored. It has the content of `_key`, `non_embedding_parameters` of both
    models, and what `repeated` gives of the base model (`base`), of the method (by its name), and of a model with
    `equivalent_layers` layers and random weights (`equivalent`).
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
    plain = get_method("base")(get_method("base").Config(name="base"))
    plain_context = Context(config=replace(config, method=plain.config))
    with lock_on(path.parent / "timing.lock"):  # two workers that measure at once would slow each other down
        larger = of_depth(loaded, key["equivalent_layers"])
        measurement = key | {
            "non_embedding_parameters": non_embedding_parameters(loaded.model),
            "equivalent_non_embedding_parameters": non_embedding_parameters(larger.model),
            **measure_in_turns(
                {
                    "base": partial(plain.open, loaded, plain_context),
                    config.method.name: partial(method.open, loaded, Context(config=config)),
                    "equivalent": partial(plain.open, larger, plain_context),
                }
            ),
        }
    write_file(path, json_text(measurement))
    return measurement


def _key(config: Config, method: Method, ratio: float) -> dict[str, Any]:
    """All that determines a measurement. Loads no weights."""
    facts = facts_of(config)
    layers = load_config(config.model, offline=config.offline).num_hidden_layers
    device = resolve_device(config.device)
    on_cpu = f"{device.type} (threads: {torch.get_num_threads()})"
    return {
        "model": model_identity(model_source(config.model), config.model),
        "dtype": facts.dtype,
        "method": method.identity(facts),
        "layers": layers,
        "equivalent_layers": max(1, round(layers * ratio)),
        "new_tokens": NEW_TOKENS,
        "repetitions": REPETITIONS,
        "prompt": PROMPT,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu,
        "versions": versions(),
    }
