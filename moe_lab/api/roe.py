"""RoE on a model of one's own."""

from functools import partial
from typing import Any

from moe_lab.api.language_model import LanguageModel, loaded_model
from moe_lab.config.arguments import checked_settings
from moe_lab.config.validators import build
from moe_lab.engine.lm import EngineLM
from moe_lab.methods.roe import RoE as RoEMethod


class RoE(LanguageModel):
    """Roster of Experts (arXiv 2509.17238): every token is the average of n routings, as
    `method=roe` computes it.

        roe = RoE(model, tokenizer, n=8, temperature=0.1)
        roe.generate("2 + 2 =", max_new_tokens=8)
        model.generate(**inputs, custom_generate=roe)

    The model is not changed: `model(...)`, and `model.generate` without `custom_generate`, give
    what they gave before.

    Args:
        model: a causal language model of transformers with routers of a supported family, in
            evaluation mode.
        tokenizer: the model's tokenizer.
        n: routing samples of each token; sample 0 has no noise.
        temperature: of the noise (equation 1): a number for all MoE layers not skipped, a list with
            one per MoE layer, or the path of a profile that `tuning=` wrote. The first layer with
            noise follows from it.
        skip_layers: MoE layers without noise at either end; None: 1 for a number, 0 for a list or
            profile.
        cache: history that samples attend to: "clean", one without noise for all; "standard", each
            its own; "none", each its own, computed anew for every token.
        prefill: with histories of their own, whether samples read the prompt with noise: "noisy" or
            "clean".
        weights: whether combine weights come from "clean" or "perturbed" router logits.
        aggregate: what is averaged: "probabilities" or "logits".
        include_clean: whether sample 0 is part of the average.
        noise: "gumbel", independent in all samples, or "antithetic" in samples 2j-1 and 2j.
        logit_scale: what the log of the averaged distribution is multiplied by before the last
            softmax (1 / softmax temperature); None: a profile's, else 1.
        seed: key of the routing noise and of sampled tokens. Equal calls give equal results;
            `generate` takes a seed of its own.

    Raises ConfigError for an impossible value, and ModelError for a model that cannot be routed
    otherwise.
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
        noise: str = "gumbel",
        logit_scale: float | None = None,
        seed: int = 0,
    ):
        keys = {
            "n": n,
            "temperature": temperature,
            "skip_layers": skip_layers,
            "cache": cache,
            "prefill": prefill,
            "weights": weights,
            "aggregate": aggregate,
            "include_clean": include_clean,
            "noise": noise,
            "logit_scale": logit_scale,
        }
        seed = checked_settings(seed=seed)["seed"]
        method = RoEMethod(build(RoEMethod.Config, keys, "method."))
        loaded = loaded_model(model, tokenizer)
        facts = loaded.facts
        method.check(facts)
        self.temperatures = method.temperatures(facts.moe_layers)
        """One per MoE layer."""
        first = method.first_noisy(facts.moe_layers)
        self._ensemble = partial(method.ensemble, self.temperatures, first)
        ensemble = self._ensemble(seed)
        lm = EngineLM(loaded.model, tokenizer, ensemble=ensemble, seed=seed, progress=False)
        super().__init__(lm, n=n, temperature=temperature, cache=cache)

    def _set_seed(self, seed: int) -> None:
        """Use another seed, also of the routing noise, from now on."""
        super()._set_seed(seed)
        if self.lm.ensemble.n > 1:
            # a new one: the old one's decisions are counted
            self.lm.set_ensemble(self._ensemble(seed))
