"""The configurations of DeepSeek-MoE-16B, with the published names and values, and of the designs.

A design has DeepSeek-MoE's names, and those that differ between designs.
"""

from importlib import import_module
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig


@strict
class DeepseekConfig(PreTrainedConfig):
    """A Llama with layers of routed and shared experts (DeepSeekMoE, section 3).

    Layer i has experts where `i >= first_k_dense_replace` and `i % moe_layer_freq == 0`; the others
    are dense and `intermediate_size` wide. `n_shared_experts` is null where there are none.
    `aux_loss_alpha` counts in training only, and with `output_router_logits` only.
    """

    model_type: ClassVar[str] = "deepseek"
    modeling: ClassVar[str] = "moe_lab.models.designs.deepseek"
    """The module that registers the model's classes. It is imported with the first
    configuration."""
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]
    attribute_map: ClassVar[dict[str, str]] = {
        "num_experts": "n_routed_experts",
        "router_aux_loss_coef": "aux_loss_alpha",
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
    scoring_func: Literal["softmax"] = "softmax"
    aux_loss_alpha: float = 0.001
    output_router_logits: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)
        import_module(self.modeling)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether decoder layer `layer`, counted from 0, has experts."""
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0


HASHED = "word-hash"
"""The router that takes a word's experts by a hash of its first token's id."""
UNITS = ("word", "sentence", HASHED)
"""Routers that decide once for all tokens of a unit of text."""


@strict
class MoeDesignConfig(DeepseekConfig):
    """A backbone, a router, routed and shared experts.

    The experts are named as in `DeepseekConfig`: `n_routed_experts`, `num_experts_per_tok`,
    `n_shared_experts` (null or 0: none), `moe_intermediate_size`, `norm_topk_prob`.
    `intermediate_size` is the width of dense layers alone.

    - backbone: `olmoe` (attention with norms of queries and keys, experts in every layer) or
      `deepseek` (Llama's attention, `first_k_dense_replace` dense layers).
    - router: `token` (each token takes its k experts), `word` and `sentence` (all tokens of one
      take the k experts of its first token), `word-hash` (a hash of the id of a word's first token
      gives its experts, with equal weights), or `expert` (each expert takes its tokens).
    - selection_bias: whether routers have a buffer `selection_bias` that is added to the scores by
      which experts are chosen.
    - capacity_factor: for the router `expert`, the tokens of an expert relative to T k / E, its
      share of T tokens where all experts have the same number.
    - aux_loss_alpha: the coefficient of transformers' load-balancing loss, with
      `output_router_logits` only. The loss leaves out the selection bias, and the router `expert`
      has none.
    """

    model_type: ClassVar[str] = "moe_design"
    modeling: ClassVar[str] = "moe_lab.models.designs.modeling"

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    n_shared_experts: int | None = None
    first_k_dense_replace: int = 0
    aux_loss_alpha: float = 0.0
    backbone: str = "olmoe"
    router: str = "token"
    selection_bias: bool = False
    capacity_factor: int | float = 1.0
    clip_qkv: int | float | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.router == "expert":
            self.use_cache = False
        super().__post_init__(**kwargs)

    @property
    def layer_types(self) -> list[str] | None:
        """Kinds of layers, by which transformers builds its cache.

        A layer with units keeps keys, values and a state, the decision of the unit that a sequence
        is in.
        """
        return ["hybrid"] * self.num_hidden_layers if self.router in UNITS else None
