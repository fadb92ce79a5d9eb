"""Small configurations of families whose layers differ: windows, chunks, recurrent states, compressed keys and values.

`tests.support.models.build` builds their models.
"""

from __future__ import annotations

WINDOW = 8
"""Tokens that windows and chunks hold; prompts of the tests are longer."""

_COMMON = dict(
    vocab_size=300,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=4,
    num_experts_per_tok=2,
    intermediate_size=24,
    moe_intermediate_size=24,
    max_position_embeddings=512,
    bos_token_id=256,
    eos_token_id=256,
    pad_token_id=256,
)
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MLA = dict(
    n_routed_experts=8,
    n_shared_experts=1,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    kv_lora_rank=16,
    q_lora_rank=12,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=12,
    head_dim=4,
    num_key_value_heads=4,
)
_LLAMA4 = dict(
    num_local_experts=4,
    num_experts_per_tok=1,
    interleave_moe_layer_step=1,
    intermediate_size_mlp=24,
    head_dim=8,
    no_rope_layers=[1, 1, 1, 0],
    attention_chunk_size=WINDOW,
    layer_types=["chunked_attention"] * 3 + [_FULL],
    floor_scale=4,
)
_MAMBA = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4)

KV_CACHE = {
    "gpt_oss": dict(
        num_local_experts=8, head_dim=8, sliding_window=WINDOW, layer_types=[_SLIDING, _FULL] * 2
    ),
    "mixtral": dict(num_local_experts=6, sliding_window=WINDOW),
    "qwen2_moe": dict(
        num_experts=8,
        shared_expert_intermediate_size=24,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=[_FULL, _SLIDING, _SLIDING, _FULL],
        mlp_only_layers=[1],
    ),
    "llama4_text": _LLAMA4 | dict(attn_temperature_tuning=False),
    "gemma4_text": dict(
        num_experts=6,
        top_k_experts=2,
        enable_moe_block=True,
        head_dim=8,
        global_head_dim=16,
        sliding_window=WINDOW,
        layer_types=[_SLIDING, _SLIDING, _SLIDING, _FULL],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        num_kv_shared_layers=0,
    ),
    "deepseek_v3": _MLA,
    "granitemoe": dict(num_local_experts=6, embedding_multiplier=3.0, residual_multiplier=0.5),
}
KV_CACHE = {name: _COMMON | own for name, own in KV_CACHE.items()}
"""Run over a `KVCache`."""

RECURRENT = {
    "qwen3_next": dict(
        num_experts=8,
        shared_expert_intermediate_size=24,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "linear_attention", "linear_attention", _FULL],
    ),
    "minimax": dict(
        num_local_experts=6, head_dim=8, block_size=4, layer_types=["linear_attention", _FULL] * 2
    ),
    "granitemoehybrid": _MAMBA
    | dict(
        num_local_experts=6,
        shared_intermediate_size=24,
        layer_types=["linear_attention", "linear_attention", _FULL, "linear_attention"],
    ),
    "jamba": dict(
        num_experts=6,
        expert_layer_period=2,
        expert_layer_offset=1,
        attn_layer_period=4,
        attn_layer_offset=2,
        mamba_d_state=8,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "llama4_text": _LLAMA4 | dict(attn_temperature_tuning=True),
}
RECURRENT = {name: _COMMON | own for name, own in RECURRENT.items()}
"""Run with a copy of the model's own cache for every sample."""
