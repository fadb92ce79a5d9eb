"""RoE's Figure 5: the size of the plain model with the same loss by the scaling law, and time and memory of both."""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.methods import get_method
from moe_lab.methods.method import Context, Method
from moe_lab.models.facts import LoadedModel, resolve_device
from moe_lab.models.identity import model_identity
from moe_lab.models.memory import (
    ModelPool,
    memory_bytes,
    peak_memory_bytes,
    reset_peak_memory,
    weight_bytes,
)
from moe_lab.models.source import load_config, model_source
from moe_lab.reports.papers.cells import TableCell
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.locks import lock_on
from moe_lab.results.names import folder_name
from moe_lab.results.stored_files import whole_mapping
from moe_lab.results.versions import versions
from moe_lab.runs.prepare import facts_of

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
    return sum(
        parameter.numel() for parameter in model.parameters() if id(parameter) not in excluded
    )


# Latency and memory of generating a fixed number of tokens, measured for several settings in turns

NEW_TOKENS = 128
"""The paper's latency is the time for 128 tokens."""
REPETITIONS = 5
PROMPT = "Question: Ann has 3 pens and buys 2 more. How many pens does she have now?\nAnswer:"


def measure_in_turns(
    settings: Mapping[str, Callable[[], AbstractContextManager[EngineLM]]],
    new_tokens: int = NEW_TOKENS,
    repetitions: int = REPETITIONS,
) -> dict[str, dict[str, float]]:
    """The median of the seconds and the most memory of a generation, by setting. Batch 1, greedy, no end token.

    Every setting is measured once per round, so that other load affects all equally. The first round is a warm-up.
    `settings` has a context manager that opens the LM, by name.
    """
    rounds: dict[str, list[tuple[float, int]]] = {name: [] for name in settings}
    with ExitStack() as stack:
        models = {name: stack.enter_context(opened()) for name, opened in settings.items()}
        for _ in range(repetitions + 1):
            for name, lm in models.items():
                rounds[name].append(_generate_once(lm, new_tokens))
    found = {}
    for name, [_, *measured_rounds] in rounds.items():
        seconds, memory = zip(*measured_rounds, strict=True)
        found[name] = {"seconds": statistics.median(seconds), "memory_bytes": max(memory)}
    return found


def _generate_once(lm: EngineLM, new_tokens: int) -> tuple[float, int]:
    """The seconds, and the bytes of the weights and of the peak of additional memory."""
    lm.progress = False
    ends = lm.model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    options = {
        "until": [],
        "max_gen_toks": new_tokens,
        "do_sample": False,
        "suppress_tokens": ends or None,
    }
    before, device = lm.cost["tokens_out"], lm.device
    reset_peak_memory(device)
    held, start = memory_bytes(device), time.perf_counter()
    lm.answer("generate_until", [Request((PROMPT, options))], lambda *_: None)
    seconds = time.perf_counter() - start
    generated = lm.cost["tokens_out"] - before
    if generated != new_tokens:
        raise RuntimeError(
            f"{generated} tokens were generated instead of {new_tokens}: no measurement."
        )
    return seconds, weight_bytes(lm.model) + max(0, peak_memory_bytes(device) - held)


# Time and memory of RoE and of the plain model with the same loss by the scaling law, measured once and stored


def cost_measurement(
    config: Config, models: ModelPool, ratio: float, *, compute: bool = True
) -> Mapping[str, Any] | None:
    """The stored or new measurement of a RoE configuration and a plain model `ratio` times as large.

    None with `compute=False` if it is not stored. It has the content of `_key`, `non_embedding_parameters` of both
    models, and what `measure_in_turns` gives of the base model (`base`), of the method (by its name), and of a model
    with `equivalent_layers` layers and random weights (`equivalent`).
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
    # two workers that measure at once would slow each other down
    with lock_on(path.parent / "timing.lock"):
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


# The rows of the figure

ALPHA_N = 0.076
"""The exponent of model size in Kaplan et al. (2020), "Scaling Laws for Neural Language Models", equation 1.1."""


def size_ratio(loss: float, base_loss: float) -> float:
    """The factor by which the base model would have to grow to reach `loss`: (base_loss / loss)^(1 / ALPHA_N).

    Kaplan et al. give the loss as L(N) = (N_c / N)^alpha_N: N counts parameters without the embeddings, L is the
    cross-entropy in nats per token. A ratio of sizes needs neither N_c nor the number of tokens: both cancel. The two
    losses are of the same text, per token, per word or in sum.
    """
    return (base_loss / loss) ** (1 / ALPHA_N)


MEASURED = (
    *(
        "non_embedding_parameters",
        "equivalent_non_embedding_parameters",
        "layers",
        "equivalent_layers",
    ),
    *("new_tokens", "repetitions", "device"),
)
"""Columns of a measurement that the figure's table has as they are."""


def equivalent_rows(
    cells: Sequence[TableCell], models: ModelPool, *, compute: bool = True
) -> list[dict[str, Any]]:
    """A row per cell with a perplexity, ordered by n: the equivalent model size, and time and memory of both models.

    The interval of the size is that of the paired difference in perplexity, resampled over documents. With
    `compute=False` cells whose time was not measured yet are left out.
    """
    rows = []
    for cell in cells:
        if not cell.results or cell.results[0].base_id is None:
            continue
        score, result, roe, config = (
            cell.score(),
            cell.results[0],
            cell.results[0].report,
            cell.config,
        )
        assert score is not None and config is not None
        assert score.value is not None and score.baseline is not None
        base, interval = score.baseline, score.tested_interval
        # the base model at its best logit scale: the mean over seeds, whose studies may have other scales
        scaled: list[Any] = [
            one.other_scores(score.task, "calibration").get(score.metric) for one in cell.results
        ]
        perplexities = {
            "": score.value,
            "_low": interval and base + interval[1],
            "_high": interval and base + interval[0],
            "calibrated": None if None in scaled else sum(scaled) / len(scaled),
        }
        # the logarithms of perplexities per word are proportional to the losses per token
        ratios = {
            name: one and size_ratio(math.log(one), math.log(base))
            for name, one in perplexities.items()
        }
        tuned = replace(
            config.method, n=roe["n"], temperature=roe["temperatures"], skip_layers=None
        )
        config = replace(config, method=tuned, batch_size=1)
        found = cost_measurement(config, models, ratios[""] or 1.0, compute=compute)
        if found is None:
            continue
        row = {
            "model": score.model,
            "task": score.task,
            "documents": score.n,
            "seeds": score.seeds,
            "n": roe["n"],
            "metric": score.metric,
            "perplexity": score.value,
            "base_perplexity": base,
            "size_ratio": ratios[""],
            "size_ratio_low": ratios["_low"],
            "size_ratio_high": ratios["_high"],
            "calibrated_perplexity": perplexities["calibrated"],
            "calibrated_size_ratio": ratios["calibrated"],
            "run_id": score.run_id,
            **{name: found[name] for name in MEASURED},
        }
        for name in ("base", result.method.name, "equivalent"):
            row[f"{name}_milliseconds_per_token"] = (
                1000 * found[name]["seconds"] / found["new_tokens"]
            )
            row[f"{name}_mebibytes"] = found[name]["memory_bytes"] / 2**20
        rows.append(row)
    return sorted(rows, key=lambda row: row["n"])
