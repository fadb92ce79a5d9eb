"""A model and a tokenizer of the caller's own, as the rest of the package takes them."""

from __future__ import annotations

from typing import Any

from moe_lab.config.arguments import wrong
from moe_lab.errors import ModelError
from moe_lab.models.facts import ModelFacts, routing_facts
from moe_lab.models.load import LoadedModel
from moe_lab.routing.adapters import transformers_model
from moe_lab.routing.hook import find_routers, fixed_message, require_routers, why_fixed


def loaded_model(
    model: Any, tokenizer: Any, needs_router: bool = True, needs_tokenizer: bool = True
) -> LoadedModel:
    """A causal language model of transformers and its tokenizer, with the facts of its configuration.

    Of a model in PEFT's wrapper it is the inner model, which has the adapters.

    Raises ConfigError for what is no tokenizer, and ModelError for what is no such model, for a model in training mode
    and, with `needs_router`, for one without a supported router or whose routing cannot be changed.
    """
    model = transformers_model(model)
    name = type(model).__name__
    if not hasattr(model, "generate") or model.get_output_embeddings() is None:
        raise ModelError(f"{name} has no output head. Load it by AutoModelForCausalLM.")
    if needs_tokenizer and not all(hasattr(tokenizer, each) for each in ("encode", "decode", "pad_token_id")):
        raise wrong(
            "tokenizer",
            tokenizer,
            "give the model's tokenizer, as AutoTokenizer.from_pretrained(...) loads it",
        )
    if model.training:
        raise ModelError(f"{name} is in training mode, which changes its numbers. Call model.eval() first.")
    if needs_router:
        require_routers(model)
        if reason := why_fixed(model):
            raise ModelError(fixed_message(name, reason))
    facts = routing_facts(model.config) | {"moe_layers": len(find_routers(model))}
    dtype = str(model.dtype).removeprefix("torch.")
    own = ModelFacts(name=name, path=None, revision=None, commit=None, dtype=dtype, **facts)
    return LoadedModel(model, tokenizer, own, next(model.parameters()).device, load_seconds=0.0)
