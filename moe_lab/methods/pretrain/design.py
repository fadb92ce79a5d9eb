"""A design as a configuration of transformers, or of `models/designs`."""

from typing import Any

from moe_lab.methods.pretrain.config import PretrainConfig

LEAST_POSITIONS = 2048
"""Prompts of tasks may be longer than a row of the training; rotary positions need no training."""
NORM_EPS = 1e-5
"""OLMoE's epsilon, for all designs, because the defaults of the classes differ."""


def architecture(design: PretrainConfig, tokenizer: Any) -> Any:
    """The configuration of the model: plain OLMoE,
    DeepSeek-MoE or Llama if one of them has the design."""
    pad_token = tokenizer.pad_token_id
    if pad_token == tokenizer.eos_token_id:
        # torch.nn.Embedding never trains a padding token, and the end token must be trained
        pad_token = None
    common = {
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,  # ids may have gaps
        "hidden_size": design.hidden_size,
        "num_hidden_layers": design.layers,
        "num_attention_heads": design.heads,
        "num_key_value_heads": design.heads,
        "max_position_embeddings": max(LEAST_POSITIONS, design.sequence_length),
        "rms_norm_eps": NORM_EPS,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": pad_token,
    }
    if design.backbone == "dense":
        from transformers import LlamaConfig

        return LlamaConfig(intermediate_size=design.active_size, **common)
    if _is_plain(design) and design.backbone == "olmoe":
        from transformers import OlmoeConfig

        return OlmoeConfig(
            intermediate_size=design.expert_size,
            num_experts=design.experts,
            num_experts_per_tok=design.experts_per_token,
            **common,
        )
    deepseek = {
        "intermediate_size": design.active_size,
        "moe_intermediate_size": design.expert_size,
        "n_routed_experts": design.experts,
        "num_experts_per_tok": design.experts_per_token,
        "n_shared_experts": design.shared_experts or None,
        "first_k_dense_replace": 1 if design.backbone == "deepseek" else 0,
        **common,
    }
    if _is_plain(design):
        from moe_lab.models.designs.configuration import DeepseekConfig

        return DeepseekConfig(**deepseek)
    from moe_lab.models.designs.configuration import MoeDesignConfig

    return MoeDesignConfig(
        backbone=design.backbone,
        router=design.router,
        capacity_factor=design.capacity_factor,
        selection_bias=design.bias_rate > 0,
        **deepseek,
    )


def _is_plain(design: PretrainConfig) -> bool:
    """Whether a class of transformers, or DeepSeek-MoE, has the design."""
    if design.backbone == "olmoe" and design.shared_experts:
        return False
    return design.router == "token" and not design.bias_rate
