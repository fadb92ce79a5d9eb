"""RoE and C3PO on a model of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from moe_lab.api.language_model import LanguageModel, loaded_model
from moe_lab.config.arguments import checked_settings, wrong
from moe_lab.config.schema import Config
from moe_lab.config.validators import build
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.engine import C3POLM
from moe_lab.methods.c3po.method import C3PO as C3POMethod
from moe_lab.methods.c3po.method import named_layers
from moe_lab.methods.references.reference_set import given_references, stored_references
from moe_lab.methods.references.store import check_own
from moe_lab.methods.roe import RoE as RoEMethod
from moe_lab.routing.hook import opened


class RoE(LanguageModel):
    """Roster of Experts (arXiv 2509.17238): every token is the average of n routings, as `method=roe` computes it.

        roe = RoE(model, tokenizer, n=8, temperature=0.1)
        roe.generate("2 + 2 =", max_new_tokens=8)
        model.generate(**inputs, custom_generate=roe)

    The model is not changed: `model(...)`, and `model.generate` without `custom_generate`, give what they gave before.

    Args:
        model: a causal language model of transformers with routers of a supported family, in evaluation mode.
        tokenizer: the model's tokenizer.
        n: routing samples of each token; sample 0 has no noise.
        temperature: of the noise (equation 1): a number for all MoE layers not skipped, a list with one per MoE layer,
            or the path of a profile that `tuning=` wrote. The first layer with noise follows from it.
        skip_layers: MoE layers without noise at either end; None: 1 for a number, 0 for a list or profile.
        cache: history that samples attend to: "clean", one without noise for all; "standard", each its own; "none",
            each its own, computed anew for every token.
        prefill: with histories of their own, whether samples read the prompt with noise: "noisy" or "clean".
        weights: whether combine weights come from "clean" or "perturbed" router logits.
        aggregate: what is averaged: "probabilities" or "logits".
        include_clean: whether sample 0 is part of the average.
        adaptive: what decides how many samples a token takes: "margin" (difference of the two largest next-token
            probabilities of the clean sample) or "entropy" (in nats); None: every token takes n. With cache="clean".
        bands: with `adaptive`, (bound, samples) of each band, the most unsure first: [(0.2, 32), (0.6, 8)]. A token
            takes the samples of the first band that it is in, and the clean sample alone if it is in none.
        noise: "gumbel", independent in all samples, or "antithetic" in samples 2j-1 and 2j.
        noise_scale: "constant", or "margin": temperatures are multiplied by the router's margin, per token and layer.
        logit_scale: what the log of the averaged distribution is multiplied by before the last softmax
            (1 / softmax temperature); None: a profile's, else 1.
        seed: key of the routing noise and of sampled tokens. Equal calls give equal results; `generate` takes a seed of
            its own.

    Raises ConfigError for an impossible value, and ModelError for a model that cannot be routed otherwise.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        n: int = 32,
        temperature: float | list[float] | str = 0.1,
        skip_layers: int | None = None,
        cache: str = "clean",
        prefill: str = "noisy",
        weights: str = "clean",
        aggregate: str = "probabilities",
        include_clean: bool = True,
        adaptive: str | None = None,
        bands: Sequence[tuple[float, int]] | None = None,
        noise: str = "gumbel",
        noise_scale: str = "constant",
        logit_scale: float | None = None,
        seed: int = 0,
    ):
        keys = {
            "n": n,
            "temperature": _plain(temperature),
            "skip_layers": skip_layers,
            "cache": cache,
            "prefill": prefill,
            "weights": weights,
            "aggregate": aggregate,
            "include_clean": include_clean,
            "adaptive": adaptive,
            "bands": _plain(bands),
            "noise": noise,
            "noise_scale": noise_scale,
            "logit_scale": logit_scale,
        }
        seed = checked_settings(seed=seed)["seed"]
        method, loaded = RoEMethod(build(RoEMethod.Config, keys, "method.")), loaded_model(model, tokenizer)
        facts = loaded.facts
        method.check(facts)
        self.temperatures = method.temperatures(facts.moe_layers)
        """One per MoE layer."""
        first = method.first_noisy(facts.moe_layers)
        self._ensemble = partial(method.ensemble, self.temperatures, first)
        ensemble = self._ensemble(seed)
        super().__init__(EngineLM(loaded.model, tokenizer, ensemble=ensemble, seed=seed, progress=False))

    def _set_seed(self, seed: int) -> None:
        super()._set_seed(seed)
        if self.lm.ensemble.n > 1:
            self.lm.set_ensemble(self._ensemble(seed))  # a new one: the old one's decisions are counted


def _plain(value: Any) -> Any:
    """Tuples as lists and paths as texts, as the command has them."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


_OF_TASKS = ("reference", "reference_size", "trace")
"""Keys that name documents of tasks and files of a run."""


class C3PO(LanguageModel):
    """Critical-layer, core-expert, collaborative pathway optimization (arXiv 2504.07964), as `method=c3po` computes it.

        c3po = C3PO(model, tokenizer, references=[("2 + 2 =", " 4"), ("3 + 1 =", " 4"), ...], k=3)
        c3po.loglikelihood("1 + 2 =", [" 3", " 4"])

    The routing weights of each prompt's last token are optimized on the references nearest to it, and the prompt is
    answered with them. The model is not changed.

    Args:
        model: a causal language model of transformers in evaluation mode, whose routers choose by logits.
        tokenizer: the model's tokenizer.
        references: prompts and their right answers (blank in front included), of questions that the model itself
            answers correctly; or the folder of a set that the command stored, `outputs/references/<name>`.
        seed: of the noise around pathways (n > 1) and of sampled tokens.
        keys: `optimizer`, `layers`, `core_experts`, `k`, `steps`, ... (`python -m moe_lab --help method=c3po`).

    Raises ConfigError for an impossible key, for fewer references than k and for a stored set of another model, and
    ModelError for a model that cannot be routed otherwise.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        references: Sequence[tuple[str, str]] | str | Path,
        *,
        seed: int = 0,
        **keys: Any,
    ):
        settings: C3POConfig = build(C3POConfig, keys, "method.")
        seed = checked_settings(seed=seed)["seed"]
        _check_keys(settings, keys, stored=isinstance(references, str | Path))
        _check_references(references)
        loaded = loaded_model(model, tokenizer)
        C3POMethod(settings).check(loaded.facts)
        if keys.get("core_experts") is not None and keys["core_experts"] > loaded.facts.experts:
            raise ConfigError(
                f"method.core_experts={keys['core_experts']}: the model has {loaded.facts.experts} experts per layer; "
                "give at most these, or None for all."
            )
        layers = named_layers(settings.layers, loaded.facts.moe_layers)
        plain = EngineLM(loaded.model, tokenizer, progress=False)
        with opened(loaded.model, "C3PO", C3POLM.refused_inside):
            if isinstance(references, str | Path):
                check_own(Path(references), settings.tokens, loaded, plain.budget)
                known = stored_references(Path(references), settings.embeddings, loaded)
            else:
                known = given_references(references, settings, loaded, plain)
        least = settings.k if settings.epsilon is None else 1
        if len(known) < least:
            raise ConfigError(f"C3PO has {len(known)} references, and k={settings.k} neighbours are wanted.")
        config = Config(method=settings, seed=seed)
        super().__init__(C3POLM(loaded, config, settings, layers, known))
        self.lm.progress = False


def _check_references(references: Any) -> None:
    """Raise ConfigError unless they are pairs of texts, or a folder."""
    if isinstance(references, str | Path):
        return  # `check_own` reads the folder
    if not isinstance(references, list | tuple) or not references:
        raise wrong("references", references, 'give pairs of prompt and answer, e.g. [("2 + 2 =", " 4")]')
    for pair in references:
        if (
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or not all(isinstance(each, str) for each in pair)
        ):
            raise wrong(
                "references", references, f'{pair!r:.60} is no pair of texts such as ("2 + 2 =", " 4")'
            )
        if not pair[1]:
            raise wrong("references", references, f"the answer to {pair[0]!r:.60} is empty")


def _check_keys(settings: C3POConfig, keys: dict[str, Any], stored: bool) -> None:
    """Raise ConfigError for what needs a task or stored wrong answers."""
    for key in _OF_TASKS:
        if key in keys:
            raise ConfigError(
                f"C3PO(..., {key}=) is a key of runs over tasks. `references` has the references."
            )
    if settings.optimizer == "oracle":
        raise ConfigError(
            "optimizer=oracle reads the right answers of a task: method=c3po of the command has it."
        )
    if settings.negative and not stored:
        raise ConfigError("negative= needs wrong answers: give the folder of a stored set as references.")
