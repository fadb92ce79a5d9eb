"""The small configuration of every supported family: adding a family is one entry of `ZOO`.

Windows, chunks and sparse attention are shorter than the prompts of the tests, biases and sinks
are not zero, groups are real groups, and the first layer is dense where the family allows it,
so that a test notices each of these. `tests/support/models.py` builds the models.
"""

from typing import Any

VOCAB = 300
"""Room for the byte tokenizer of `tests/support/models.py`."""
WINDOW = 6

COMMON = dict(vocab_size=VOCAB, max_position_embeddings=256, num_hidden_layers=4)
COMMON |= dict(hidden_size=32, intermediate_size=48, moe_intermediate_size=24)
COMMON |= dict(num_attention_heads=4, num_key_value_heads=2, num_experts_per_tok=2)
COMMON |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8)
COMMON |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 256)
_HEADS = dict(head_dim=8)
_LATENT = dict(q_lora_rank=16, kv_lora_rank=16, num_key_value_heads=4)
_MLA = _LATENT | dict(qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12)
_GROUPS = dict(n_group=4, topk_group=2, routed_scaling_factor=1.5)
_WINDOW = dict(sliding_window=WINDOW)
_DENSE_FIRST = dict(mlp_layer_types=["dense", "sparse", "sparse", "sparse"])
_DENSE_FIRST_K = dict(first_k_dense_replace=1)
_INDEXER = dict(index_n_heads=16, index_head_dim=16, index_topk=4)
"""Many heads. With few, many keys score an exact 0, and the choice among them is undefined."""
_HYBRID = dict(layer_types=["linear_attention", "full_attention"] * 2)
_LINEAR_HEADS = dict(linear_num_value_heads=4, linear_num_key_heads=2)
_LINEAR_HEADS |= dict(linear_key_head_dim=8, linear_value_head_dim=8)
_LINEAR = _HYBRID | _LINEAR_HEADS | dict(head_dim=16)
_SHARED = dict(shared_expert_intermediate_size=16)
_ALTERNATING = dict(layer_types=["sliding_attention", "full_attention"] * 2)
_ROPE = dict(rope_type="default", rope_theta=10000.0)
_AXES: dict[str, Any] = dict(rope_parameters=_ROPE | dict(mrope_section=[2, 1, 1]))
"""Positions of three axes: those of images and videos differ, those of text are equal."""
_NONE_OF = dict.fromkeys(
    COMMON.keys() - {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"}, ...
)

# Parts of a single family
_DBRX = dict(d_model=32, n_heads=4, n_layers=3, max_seq_len=256)
_DBRX_EXPERTS = dict(ffn_hidden_size=24, moe_num_experts=8, moe_top_k=2, hidden_size=32)
_DBRX_ATTENTION = dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8)
_GEMMA_LAYERS = dict(layer_types=["sliding_attention"] * 3 + ["full_attention"], global_head_dim=8)
_GEMMA_INPUTS = dict(hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB)
_GRANITE_MAMBA = dict(
    mamba_n_heads=4, mamba_d_head=16, mamba_expand=2, mamba_d_state=8, mamba_n_groups=1
)
_JAMBA_ATTENTION = dict(attn_layer_period=2, attn_layer_offset=1)
_JAMBA_EXPERTS = dict(expert_layer_period=2, expert_layer_offset=1)
_LLAMA4_SIZES = ("vision_output_dim", "projector_input_dim", "projector_output_dim")
_LONGCAT = dict(num_layers=2, moe_topk=2, expert_ffn_hidden_size=24, ffn_hidden_size=48)
_MINIMAX_SIZES = dict(dense_intermediate_size=48, shared_intermediate_size=24)
_NEMOTRON_LAYERS = dict(layers_block_type=["linear_attention", "moe", "full_attention", "moe"])
_NEMOTRON_MAMBA = dict(mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=1)
_QWEN4_LAYERS = dict(layer_types=["linear_attention", "indexed_attention"] * 2)
_QWEN4_INDEXER = dict(indexer_n_heads=16, indexer_kv_heads=1, indexer_head_dim=16)
_QWEN4_INDEXER |= dict(indexer_budget=8, indexer_compress_ratio=4)
_QWEN4_NGRAMS: dict[str, Any] = dict(
    ngram_vocab_size_base=60, heads_per_ngram=2, split_ngram_parts=1
)
_QWEN4_NGRAMS |= dict(make_ngram_vocab_size_divisible_by=2, ple_embed_dim=8, ple_layer_ids=[1])

ZOO: dict[str, dict[str, Any]] = {
    "afmoe": _WINDOW | _HEADS | dict(num_dense_layers=1),
    "aria_text": dict(moe_num_experts=8, moe_topk=2),
    "axk1": _MLA | _GROUPS | _DENSE_FIRST,
    "axk2": _MLA | _GROUPS | _DENSE_FIRST | _INDEXER,
    "bailing_hybrid": _MLA | _GROUPS | _DENSE_FIRST | _HYBRID,
    "beam": _GROUPS | _DENSE_FIRST | _WINDOW | _HEADS,
    "cohere2_moe": _WINDOW | _HEADS | _DENSE_FIRST | dict(logit_scale=1.0),
    "dbrx": _NONE_OF | _DBRX | dict(ffn_config=_DBRX_EXPERTS, attn_config=_DBRX_ATTENTION),
    "deepseek": _DENSE_FIRST_K | dict(num_key_value_heads=4, n_shared_experts=2),
    "deepseek_v2": _MLA
    | _GROUPS
    | _DENSE_FIRST_K
    | dict(topk_method="group_limited_greedy", n_shared_experts=1),
    "deepseek_v3": _MLA | _GROUPS | _DENSE_FIRST_K,
    "deepseek_v32": _MLA | _GROUPS | _DENSE_FIRST | _INDEXER,
    "dots1": _GROUPS | _HEADS | _DENSE_FIRST_K | dict(n_shared_experts=1, norm_topk_prob=True),
    "dots3_note_text": _MLA
    | _GROUPS
    | _DENSE_FIRST
    | _INDEXER
    | _WINDOW
    | {f"swa_{key}": value for key, value in _MLA.items()}
    | dict(swa_num_attention_heads=4, swa_head_dim=16, swa_qk_rope_head_dim=8),
    "ernie4_5_moe": dict(
        moe_num_shared_experts=1, moe_k=2, moe_layer_start_index=1, moe_layer_interval=2
    ),
    "exaone_moe": _GROUPS | _DENSE_FIRST | _WINDOW | _HEADS,
    "flex_olmo": {},
    "flint": _WINDOW | _HEADS | dict(decoder_sparse_step=1),
    "gemma4_text": _WINDOW
    | _HEADS
    | _GEMMA_LAYERS
    | _GEMMA_INPUTS
    | dict(enable_moe_block=True, top_k_experts=2),
    "glm4_moe": _GROUPS | _HEADS | _DENSE_FIRST_K,
    "glm4_moe_lite": _MLA | _GROUPS | _DENSE_FIRST,
    "glm_moe_dsa": _MLA | _GROUPS | _DENSE_FIRST | _INDEXER,
    "gpt_oss": _WINDOW | _HEADS,
    "granitemoe": {},
    "granitemoe_swa": _WINDOW,
    "granitemoehybrid": _HYBRID | _GRANITE_MAMBA | dict(shared_intermediate_size=16),
    "granitemoeshared": dict(shared_intermediate_size=16),
    "hunyuan_v1_moe": _HEADS | dict(moe_topk=2),
    "hy_v3": _DENSE_FIRST | _HEADS,
    "hy_v4": _MLA | _DENSE_FIRST | _INDEXER,
    "inkling2_text": _WINDOW | _HEADS | dict(unpadded_vocab_size=VOCAB),
    "jamba": _JAMBA_ATTENTION | _JAMBA_EXPERTS | dict(mamba_d_state=8, mamba_dt_rank=4),
    "jetmoe": dict(kv_channels=8, num_attention_heads=...),
    "kimi_linear": _MLA
    | _GROUPS
    | _DENSE_FIRST
    | _HYBRID
    | dict(linear_head_dim=8, linear_num_heads=4),
    "kolibri1": _WINDOW | _HEADS,
    "laguna": _WINDOW | _HEADS | _DENSE_FIRST | _ALTERNATING,
    "lfm2_moe": dict(num_dense_layers=1, layer_types=["conv", "full_attention"] * 2),
    "llama4_text": _HEADS
    | dict(attention_chunk_size=WINDOW, intermediate_size_mlp=48, interleave_moe_layer_step=1),
    "longcat_flash": _MLA | _LONGCAT | dict(zero_expert_num=2, head_dim=8),
    "mellum": _WINDOW | _HEADS | _ALTERNATING,
    "mimo_v2_flash": _WINDOW
    | _HEADS
    | _GROUPS
    | _DENSE_FIRST
    | dict(v_head_dim=8, swa_head_dim=8, swa_v_head_dim=8),
    "minimax": _HEADS | _HYBRID | dict(block_size=4),
    "minimax_m2": _HEADS,
    "minimax_m3_vl_text": _DENSE_FIRST
    | _HEADS
    | _MINIMAX_SIZES
    | dict(rotary_dim=8, index_head_dim=16, index_block_size=4),
    "mixtral": _WINDOW,
    "moe_design": _DENSE_FIRST_K
    | dict(backbone="deepseek", n_shared_experts=1, norm_topk_prob=True),
    "nemotron_h": _GROUPS
    | _HEADS
    | _NEMOTRON_LAYERS
    | _NEMOTRON_MAMBA
    | dict(num_hidden_layers=..., moe_shared_expert_intermediate_size=16),
    "olmoe": {},
    "phimoe": _WINDOW,
    "qwen2_moe": _SHARED
    | _WINDOW
    | dict(
        use_sliding_window=True, max_window_layers=2, decoder_sparse_step=1, mlp_only_layers=[1]
    ),
    "qwen3_5_moe_text": _LINEAR | _SHARED,
    "qwen3_moe": _HEADS | dict(decoder_sparse_step=2, norm_topk_prob=True),
    "qwen3_next": _LINEAR | _SHARED | dict(decoder_sparse_step=1),
    "qwen4_exp_text": _LINEAR
    | _SHARED
    | _QWEN4_LAYERS
    | _QWEN4_INDEXER
    | _QWEN4_NGRAMS
    | dict(hc_lowrank=8, hc_count=2),
    "qwen3_vl_moe_text": _HEADS | _AXES | dict(decoder_sparse_step=1, mlp_only_layers=[1]),
    "ernie4_5_vl_moe_text": _DENSE_FIRST
    | dict(
        rope_parameters=_ROPE | dict(mrope_section=[1, 1, 2]),
        moe_k=2,
        moe_num_experts=8,
        moe_num_shared_experts=1,
        moe_intermediate_size=[24, 16],
        num_experts=...,
        num_experts_per_tok=...,
    ),
    "glm4v_moe_text": _GROUPS
    | _DENSE_FIRST_K
    | dict(
        head_dim=16,
        rope_parameters=_ROPE | dict(mrope_section=[2, 1, 1], partial_rotary_factor=0.5),
    ),
    "glm5_next_text": _LATENT
    | _GROUPS
    | _DENSE_FIRST
    | _INDEXER
    | dict(
        qk_nope_head_dim=8,
        v_head_dim=12,
        layer_types=["linear_attention", "indexed_attention"] * 2,
        linear_head_dim=8,
        linear_num_heads=4,
        index_kpool=2,
    ),
    "hy_v4_vl_text": _MLA | _DENSE_FIRST | _INDEXER | _AXES,
    "mistral4": _MLA | _GROUPS | _DENSE_FIRST_K,
    "mistral_large4_text": _MLA | _GROUPS | _DENSE_FIRST | _INDEXER,
    "muse_spark_text": _WINDOW | _HEADS | _DENSE_FIRST | _ALTERNATING | dict(moe_hidden_size=24),
    "step3p5": _WINDOW
    | _HEADS
    | _DENSE_FIRST
    | _ALTERNATING
    | dict(share_expert_dim=16, num_sliding_attention_heads=2),
    "solar_open": _GROUPS | _HEADS | dict(n_shared_experts=1, norm_topk_prob=True),
}
"""`model_type` -> settings of its small configuration besides `COMMON`; `...` removes a key."""

IMAGE_TOKENS = dict.fromkeys(
    (
        "image_token_id",
        "image_token_index",
        "video_token_id",
        "video_token_index",
        "vision_start_token_id",
        "vision_end_token_id",
    ),
    VOCAB - 1,
)
_VISION = dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4)
_VISION |= dict(image_size=8)
_VISION |= dict(out_hidden_size=32, num_hidden_layers=2, num_attention_heads=2)

_INTERNVL = _VISION | dict(image_size=[8, 8], patch_size=[4, 4])

IMAGE_TEXT: dict[str, dict[str, Any]] = {
    "aria": dict(text="aria_text", vision=_VISION | dict(model_type="idefics3_vision")),
    "ernie4_5_vl_moe": dict(text="ernie4_5_vl_moe_text", vision=_VISION),
    "glm4v_moe": dict(text="glm4v_moe_text", vision=_VISION),
    "glm5_next": dict(
        text="glm5_next_text", vision=_VISION | dict(projection_intermediate_size=24)
    ),
    "hy_v4_vl": dict(
        text="hy_v4_vl_text", vision=_VISION | dict(num_key_value_heads=2, max_image_size=32)
    ),
    "inkling2": dict(
        text="inkling2_text", vision=_VISION | dict(text_hidden_size=32, projection_hidden_dim=24)
    ),
    "internvl": dict(text="qwen3_moe", vision=_INTERNVL),
    "internvl, gpt_oss": dict(text="gpt_oss", vision=_INTERNVL, type="internvl"),
    "kimi_k25": dict(text="deepseek_v3", vision=_VISION, more=dict(projection_hidden_size=16)),
    "minimax_m3_vl": dict(
        text="minimax_m3_vl_text",
        vision=_VISION,
        more=dict(projector_hidden_size=24, merged_hidden_size=128),
    ),
    "mistral3": dict(text="mistral4", vision=_VISION | dict(model_type="pixtral", head_dim=8)),
    "mistral_large4": dict(
        text="mistral_large4_text", vision=_VISION | dict(model_type="pixtral", head_dim=8)
    ),
    "muse_spark": dict(
        text="muse_spark_text",
        vision=_VISION,
        more=dict(
            out_hidden_size=24,
            projector_hidden_size=24,
            audio_config=dict(
                patch_sizes=[2, 2],
                hidden_sizes=[8, 8],
                depths=[1, 1],
                num_hidden_layers=2,
                out_hidden_size=32,
            ),
        ),
    ),
    "nemotron_h_omni": dict(
        text="nemotron_h",
        vision=_VISION | dict(model_type="radio", max_img_size=16, video_temporal_patch_size=2),
        more=dict(projector_hidden_size=24, vision_hidden_size=16, audio_config=None),
    ),
    "step3p7": dict(text="step3p5", vision=_VISION | dict(image_size=8)),
    "qwen3_vl_moe": dict(
        text="qwen3_vl_moe_text",
        vision=_VISION | dict(num_position_embeddings=16, deepstack_visual_indexes=[0]),
    ),
}
"""`model_type` of an image-and-text model -> the `model_type` of its text model, the settings of
its vision tower, and `more` settings of its own.

A type with several text models is there once for each, as `type` says."""

TEXT_ONLY: dict[str, dict[str, Any]] = {
    "dots3_note": dict(
        text="dots3_note_text",
        vision=_VISION | dict(mlp_layer_types=["dense"] * 2, adapter_in_dim=16, adapter_out_dim=32),
        more=dict(
            audio_config=_VISION
            | dict(feature_size=8, downsample_hidden_size=8, adapter_input_size=16)
            | dict(adapter_out_dim=32)
        ),
    ),
    "gemma4": dict(
        text="gemma4_text",
        vision=_VISION | dict(head_dim=8, num_key_value_heads=2, position_embedding_size=16),
    ),
    "llama4": dict(
        text="llama4_text",
        vision=_VISION | dict.fromkeys(_LLAMA4_SIZES, 16),
    ),
    "qwen3_5_moe": dict(text="qwen3_5_moe_text", vision=_VISION | dict(num_position_embeddings=16)),
    "qwen4_exp": dict(text="qwen4_exp_text", vision=_VISION | dict(num_position_embeddings=16)),
}
"""Image-and-text models that `AutoModelForCausalLM` takes, as in `IMAGE_TEXT`."""

PUBLISHED = (
    "aria",
    "inkling2",
    "internvl",
    "internvl, gpt_oss",
    "kimi_k25",
    "minimax_m3_vl",
    "mistral3",
    "nemotron_h_omni",
)
"""Image-and-text models whose text model runs alone, too, and is in `ZOO`."""

ONE_WAY = {"dbrx", "jetmoe", "llama4_text", "longcat_flash", "step3p5"}
"""Families whose experts transformers computes in one way only."""
ON_KV_CACHE = (
    "olmoe",
    "gpt_oss",
    "mixtral",
    "qwen2_moe",
    "deepseek_v3",
    "granitemoe",
    "llama4_text",
    "gemma4_text",
)
"""Families whose samples share a KV cache."""
KV_CACHE_VARIANTS: dict[str, dict[str, Any]] = {
    "gemma4_text": dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0),
    "llama4_text": dict(attn_temperature_tuning=False, num_experts_per_tok=1),
}
"""What other variants of these families have, which run on a KV cache."""
