"""The designs from transformers' parts and DeepSeek-MoE's: a backbone, and experts under one of
five routers.

With token choice and the same weights, the backbone `olmoe` computes what transformers' OLMoE does
bit for bit, and `deepseek` what `DeepseekForCausalLM` does. The routers are in `routers.py`.

B = sequences, S = positions, T = B x S tokens, H = hidden size.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer
from transformers.models.olmoe.modeling_olmoe import OlmoeAttention
from transformers.utils.output_capturing import OutputRecorder

from moe_lab.models.designs.configuration import HASHED, UNITS, MoeDesignConfig
from moe_lab.models.designs.deepseek import (
    DeepseekForCausalLM,
    DeepseekModel,
    DeepseekMoE,
    DeepseekPreTrainedModel,
)
from moe_lab.models.designs.routers import (
    BiasedTopKRouter,
    DesignRouter,
    DesignTopKRouter,
    ExpertChoiceExperts,
    ExpertChoiceRouter,
    HashedWordRouter,
    UnitTopKRouter,
    last_kind,
)
from moe_lab.models.designs.units import UnitPlaces, Units, UnitTables


class DesignMoE(DeepseekMoE):
    """Routed plus shared experts, by a router of the design."""

    def __init__(self, config: MoeDesignConfig, layer: int):
        super().__init__(config)
        self.gate = _router(config, layer)
        if config.router == "expert":
            self.experts = ExpertChoiceExperts(config)


def _router(config: MoeDesignConfig, layer: int) -> DesignRouter:
    """The router of a decoder layer with experts."""
    if config.router == HASHED:
        return HashedWordRouter(config, layer)
    if config.router in UNITS:
        return UnitTopKRouter(config, layer)
    if config.router == "expert":
        return ExpertChoiceRouter(config)
    return BiasedTopKRouter(config) if config.selection_bias else DesignTopKRouter(config)


class DesignDecoderLayer(LlamaDecoderLayer):
    """A layer of the backbone. Both are Llama's, with OLMoE's attention in `olmoe`."""

    def __init__(self, config: MoeDesignConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if config.backbone == "olmoe":
            self.self_attn = OlmoeAttention(config, layer_idx)
        if config.is_moe_layer(layer_idx):
            self.mlp = DesignMoE(config, layer_idx)


class SequenceDecoderLayer(DesignDecoderLayer):
    """A layer whose router reads more than the hidden state of one token. It is called as Llama's
    layer is."""

    def forward(
        self,
        hidden_states: Tensor,
        units: Units | None = None,
        real_BS: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """`units`: of words and sentences. `real_BS`: of expert choice, bool, false for padding."""
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            cache=cache,
            **kwargs,
        )
        hidden_states = hidden_states + attended
        normed = self.post_attention_layernorm(hidden_states)
        if not isinstance(self.mlp, DesignMoE):
            return hidden_states + self.mlp(normed)
        extra = (real_BS,) if units is None else (units, cache)
        return hidden_states + self.mlp(normed, *extra)


class MoeDesignPreTrainedModel(DeepseekPreTrainedModel):
    """Class attributes that transformers reads of both classes below."""

    config_class = MoeDesignConfig
    _no_split_modules: ClassVar[list[str]] = ["DesignDecoderLayer", "SequenceDecoderLayer"]
    _can_record_outputs: ClassVar[dict[str, Any]] = {
        "router_logits": OutputRecorder(DesignRouter, index=0),
        "hidden_states": DesignDecoderLayer,
        "attentions": [
            OutputRecorder(LlamaAttention, index=1),
            OutputRecorder(OlmoeAttention, index=1),
        ],
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DesignRouter):
            if module.weight is not None:
                init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
            if module.selection_bias is not None:
                init.zeros_(module.selection_bias)


class MoeDesignModel(MoeDesignPreTrainedModel, DeepseekModel):
    """The decoder. Its forward pass is OLMoE's; routers of units and expert choice get their extra
    inputs."""

    def __init__(self, config: MoeDesignConfig):
        is_token_choice = config.router == "token"
        super().__init__(config, DesignDecoderLayer if is_token_choice else SequenceDecoderLayer)
        self.units = UnitPlaces(config.vocab_size) if config.router in UNITS else None

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Any:
        """As OLMoE's. Raises ValueError for inputs without token ids, which only token choice
        takes."""
        if self.units is not None:
            real_BS = _real(input_ids, attention_mask)
            layers = range(self.config.num_hidden_layers)
            first_moe = next(layer for layer in layers if self.config.is_moe_layer(layer))
            kwargs["units"] = self.units(input_ids, real_BS, last_kind(cache, first_moe))
        elif self.config.router != "token":  # expert choice
            real_BS = _real(input_ids, attention_mask)
            if cache is not None and cache.get_seq_length():
                raise ValueError("Expert choice reads whole sequences: it runs without a cache.")
            cache = None
            kwargs |= {"real_BS": real_BS, "use_cache": False}
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, cache=cache, **kwargs
        )


def _real(ids_BS: Tensor | None, attention_mask: Tensor | None) -> Tensor:
    """bool [B, S]: False for padding. Raises ValueError for inputs without token ids or with
    another form of mask."""
    if ids_BS is None:
        raise ValueError(
            "Routers of words, sentences and expert choice read token ids: pass input_ids."
        )
    if attention_mask is None:
        return torch.ones_like(ids_BS, dtype=torch.bool)
    if attention_mask.dim() != 2:
        raise ValueError(
            "Routers of words, sentences and expert choice take an attention mask [sequences, "
            "positions], from which they know padding, and not one of shape "
            f"{list(attention_mask.shape)}."
        )
    return attention_mask[:, -ids_BS.shape[1] :].bool()


class MoeDesignForCausalLM(MoeDesignPreTrainedModel, DeepseekForCausalLM):
    """The language model of a design."""

    decoder_class = MoeDesignModel

    def __init__(self, config: MoeDesignConfig):
        super().__init__(config)
        self._is_stateful = config.router in UNITS
        """No rolling back of a cache, as assisted generation needs it."""

    @property
    def is_causal_router(self) -> bool:
        """Whether the routing of a token depends on no later token."""
        return self.config.router != "expert"

    def set_units(self, tables: UnitTables) -> None:
        """Say where words or sentences begin; saved with the model.

        Raises ValueError for a model whose router has no units, and for a vocabulary larger than
        the model's.
        """
        if self.model.units is None:
            raise ValueError(
                f"router={self.config.router} has no units: only {' and '.join(UNITS)} have."
            )
        self.model.units.set(tables)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. With expert choice every new token reads the whole sequence again,
        without a cache."""
        if not self.is_causal_router:
            kwargs["use_cache"] = False
        return super().generate(*args, **kwargs)


# Experts are stored one by one, as DeepSeek-MoE's are.
register_checkpoint_conversion_mapping(
    MoeDesignConfig.model_type, get_checkpoint_conversion_mapping("qwen2_moe"), overwrite=True
)
AutoModel.register(MoeDesignConfig, MoeDesignModel, exist_ok=True)
AutoModelForCausalLM.register(MoeDesignConfig, MoeDesignForCausalLM, exist_ok=True)
