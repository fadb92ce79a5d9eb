"""The configuration of DeepSeek-MoE-16B, with the published names and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig


@strict
class DeepseekConfig(PreTrainedConfig):
    """A Llama with layers of routed and shared experts (DeepSeekMoE, section 3).

    Layer i has experts where `i >= first_k_dense_replace` and `i % moe_layer_freq == 0`; the others are dense and
    `intermediate_size` wide. `n_shared_experts` is null where there are none. `aux_loss_alpha` counts in training only,
    and with `output_router_logits` only.

    It derives from no other model's configuration: it is registered while transformers is being imported, when those
    cannot be.
    """

    model_type: ClassVar[str] = "deepseek"
    register_model: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    """Called with every configuration (`models/registration.py`)."""
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "num_experts": "n_routed_experts",
        "router_aux_loss_coef": "aux_loss_alpha",
    }
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
        "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "layers.*.mlp.experts.down_proj": "rowwise",
        "layers.*.mlp.experts": "moe_tp_experts",
        "layers.*.mlp.shared_experts.gate_proj": "colwise",
        "layers.*.mlp.shared_experts.up_proj": "colwise",
        "layers.*.mlp.shared_experts.down_proj": "rowwise",
    }

    vocab_size: int = 102400
    hidden_size: int = 2048
    intermediate_size: int = 10944
    moe_intermediate_size: int = 1408
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 100000
    eos_token_id: int | list[int] | None = 100001
    pretraining_tp: int = 1
    tie_word_embeddings: bool = False
    rope_parameters: dict | None = None
    attention_bias: bool = False
    attention_dropout: int | float = 0.0
    mlp_bias: bool = False
    n_routed_experts: int | None = 64
    n_shared_experts: int | None = 2
    num_experts_per_tok: int = 6
    first_k_dense_replace: int = 1
    moe_layer_freq: int = 1
    norm_topk_prob: bool = False
    scoring_func: str = "softmax"
    aux_loss_alpha: float = 0.001
    output_router_logits: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)
        type(self).register_model()

    def validate_architecture(self) -> None:
        """Raise ValueError for settings that no published checkpoint has."""
        if self.scoring_func != "softmax":
            raise ValueError(
                f"scoring_func={self.scoring_func}: the router of model_type deepseek is a softmax. "
                "DeepSeek-V3's is another model_type, deepseek_v3."
            )

        if self.n_routed_experts is None:
            raise ValueError(
                "n_routed_experts=null: without routed experts this is a Llama (model_type llama)."
            )

    def is_moe_layer(self, layer: int) -> bool:
        """Whether decoder layer `layer`, counted from 0, has experts."""
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0
