"""DeepSeek-MoE-16B from transformers' parts (Dai et al. 2024, "DeepSeekMoE", equations 1-11).

transformers does not have it, and its published code no longer loads. It is a Llama with a
`DeepseekMoE` in most layers: routed experts, chosen by the top-k of a softmax over all of them,
plus shared experts that see every token. Parameters have the published names. Experts are fused on
loading and written one by one again on saving.

B = sequences, S = positions, T = B x S tokens, H = hidden size, K = experts per token.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers import initialization as init
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.olmoe.modeling_olmoe import (
    OlmoeForCausalLM,
    OlmoeModel,
    OlmoePreTrainedModel,
)
from transformers.models.qwen2_moe.modeling_qwen2_moe import (
    Qwen2MoeExperts,
    Qwen2MoeMLP,
    Qwen2MoeTopKRouter,
)
from transformers.utils.output_capturing import OutputRecorder

from moe_lab.models.designs.configuration import DeepseekConfig


class DeepseekTopKRouter(Qwen2MoeTopKRouter):
    """Top-k of a float32 softmax over all experts, renormalized only with `norm_topk_prob`:
    equations 9-11."""


class DeepseekExperts(Qwen2MoeExperts):
    """The routed experts, fused; `experts_implementation` says how they are computed."""


class DeepseekMoE(nn.Module):
    """Routed plus shared experts: equation 9 without its residual. The shared ones are one MLP of
    their joint width."""

    def __init__(self, config: DeepseekConfig):
        super().__init__()
        self.gate = DeepseekTopKRouter(config)
        self.experts = DeepseekExperts(config)
        shared_size = (config.n_shared_experts or 0) * config.moe_intermediate_size
        self.shared_experts = None
        if shared_size:
            self.shared_experts = Qwen2MoeMLP(config, intermediate_size=shared_size)

    def forward(self, hidden_BSH: Tensor, *extra: Any) -> Tensor:
        """`extra`: what the router of a design reads in addition to hidden states. Nothing with
        token choice."""
        hidden_TH = hidden_BSH.view(-1, hidden_BSH.shape[-1])
        _, weights, index = self.gate(hidden_TH, *extra)
        routed_BSH = self.experts(hidden_TH, index, weights).view_as(hidden_BSH)
        if self.shared_experts is None:
            return routed_BSH
        return routed_BSH + self.shared_experts(hidden_BSH)


class DeepseekDecoderLayer(LlamaDecoderLayer):
    """Llama's layer, with experts where the configuration has them."""

    def __init__(self, config: DeepseekConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if config.is_moe_layer(layer_idx):
            self.mlp = DeepseekMoE(config)


class DeepseekPreTrainedModel(OlmoePreTrainedModel):
    """Class attributes that transformers reads of both classes below."""

    config_class = DeepseekConfig
    # transformers reads the module's source for its decorator to know this; the decorated class is
    # Qwen2-MoE's.
    _can_set_experts_implementation_cached_value: ClassVar[bool] = True
    _no_split_modules: ClassVar[list[str]] = ["DeepseekDecoderLayer"]
    _can_record_outputs: ClassVar[dict[str, Any]] = {
        "router_logits": OutputRecorder(DeepseekTopKRouter, index=0),
        "hidden_states": DeepseekDecoderLayer,
        "attentions": LlamaAttention,
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        PreTrainedModel._init_weights(self, module)
        if isinstance(module, DeepseekExperts):
            init.normal_(module.gate_up_proj, mean=0.0, std=self.config.initializer_range)
            init.normal_(module.down_proj, mean=0.0, std=self.config.initializer_range)
        elif isinstance(module, DeepseekTopKRouter):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)


class DeepseekModel(DeepseekPreTrainedModel, OlmoeModel):
    """The decoder. Its forward pass is OLMoE's, which is Llama's with router logits in the
    output."""

    def __init__(self, config: Any, layer_class: type[LlamaDecoderLayer] = DeepseekDecoderLayer):
        PreTrainedModel.__init__(self, config)  # OlmoeModel's builds OLMoE's layers
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        layers = [layer_class(config, layer) for layer in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()


class DeepseekForCausalLM(DeepseekPreTrainedModel, OlmoeForCausalLM):
    """The language model; its `aux_loss` with `output_router_logits` is OLMoE's."""

    decoder_class: ClassVar[type[PreTrainedModel]] = DeepseekModel

    def __init__(self, config: Any):
        PreTrainedModel.__init__(self, config)
        self.model = self.decoder_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.router_aux_loss_coef = config.aux_loss_alpha
        self.num_experts = config.n_routed_experts
        self.num_experts_per_tok = config.num_experts_per_tok
        self.post_init()


# Experts are stored one by one, as Qwen2-MoE's and DeepSeek-V2's are.
register_checkpoint_conversion_mapping(
    DeepseekConfig.model_type, get_checkpoint_conversion_mapping("qwen2_moe"), overwrite=True
)
AutoModel.register(DeepseekConfig, DeepseekModel, exist_ok=True)
AutoModelForCausalLM.register(DeepseekConfig, DeepseekForCausalLM, exist_ok=True)
