"""The configuration of a design: DeepSeek-MoE's names, and what differs between designs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from moe_lab.models.deepseek.configuration import DeepseekConfig

BACKBONES = ("olmoe", "deepseek")
HASHED = "word-hash"
"""The router that takes a word's experts by a hash of its first token's id."""
UNITS = ("word", "sentence", HASHED)
"""Routers that decide once for all tokens of a unit of text."""
ROUTERS = ("token", "expert", *UNITS)


@strict
class MoeDesignConfig(DeepseekConfig):
    """A backbone, a router, routed and shared experts.

    The experts are named as in `DeepseekConfig`: `n_routed_experts`, `num_experts_per_tok`, `n_shared_experts` (null or
    0: none), `moe_intermediate_size`, `norm_topk_prob`. `intermediate_size` is the width of dense layers alone.

    backbone: `olmoe` (attention with norms of queries and keys, experts in every layer) or `deepseek` (Llama's
    attention, `first_k_dense_replace` dense layers).
    router: `token` (each token takes its k experts), `word` and `sentence` (all tokens of one take the k experts of its
    first token), `word-hash` (a hash of the id of a word's first token gives its experts, with equal weights), or
    `expert` (each expert takes its tokens).
    selection_bias: whether routers have a buffer `selection_bias` that is added to the scores by which experts are
    chosen.
    capacity_factor: of `expert`, tokens of an expert relative to T k / E, its share of T tokens where all experts have
    the same.
    aux_loss_alpha: of transformers' load-balancing loss, with `output_router_logits` only. It is no loss of `expert`,
    and leaves out the selection bias.
    """

    model_type: ClassVar[str] = "moe_design"
    register_model: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    base_model_tp_plan: ClassVar[dict[str, str]] = {}

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
        """Kinds of layers, by which transformers makes its cache.

        A layer with units keeps keys, values and a state, the decision of the unit that a sequence is in.
        """
        return ["hybrid"] * self.num_hidden_layers if self.router in UNITS else None

    def validate_architecture(self) -> None:
        """Raise ValueError for a design that does not exist."""
        super().validate_architecture()
        for key, known in (("backbone", BACKBONES), ("router", ROUTERS)):
            if getattr(self, key) not in known:
                raise ValueError(f"{key}={getattr(self, key)}: choose one of {', '.join(known)}.")
        experts, k = self.n_routed_experts or 0, self.num_experts_per_tok
        if not 1 <= k <= experts:
            raise ValueError(
                f"num_experts_per_tok={k}: a token takes 1 to n_routed_experts={experts} experts."
            )
        if self.backbone == "olmoe" and (self.first_k_dense_replace, self.moe_layer_freq) != (0, 1):
            raise ValueError(
                f"first_k_dense_replace={self.first_k_dense_replace}, moe_layer_freq={self.moe_layer_freq}: "
                "every layer of the backbone olmoe has experts. Leave them out, or use backbone=deepseek."
            )
        if self.router == "expert" and self.selection_bias:
            raise ValueError(
                "selection_bias=true: with router=expert all experts take the same number of tokens, so there is "
                "nothing to balance. Leave it out."
            )
        if self.router == HASHED and self.selection_bias:
            raise ValueError(
                "selection_bias=true: with router=word-hash the id of a word gives its experts, so there is nothing to "
                "balance. Leave it out."
            )
        if self.capacity_factor <= 0:
            raise ValueError(f"capacity_factor={self.capacity_factor}: must be above 0.")
