"""config.json of the models in conf/model as it is published, older spellings of keys included.

Keys that have the default of transformers' configuration are left out.
"""

from tests.support.deepseek.checkpoint import PUBLISHED as DEEPSEEK

GPT_OSS = dict(
    architectures=["GptOssForCausalLM"],
    eos_token_id=200002,
    experts_per_token=4,
    initial_context_length=4096,
    layer_types=["sliding_attention", "full_attention"] * 12,
    max_position_embeddings=131072,
    model_type="gpt_oss",
    num_experts_per_tok=4,
    num_hidden_layers=24,
    num_local_experts=32,
    pad_token_id=199999,
    quantization_config={
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        "quant_method": "mxfp4",
    },
    rope_scaling={
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    rope_theta=150000,
    router_aux_loss_coef=0.9,
    sliding_window=128,
)

GPT_OSS_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")
"""Special tokens beside the beginning, end and padding."""
GPT_OSS_TEMPLATE = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: {{ strftime_now('%Y-%m-%d') }}\n\nReasoning: {{ reasoning_effort or 'medium' }}\n\n# Valid channels: "
    "analysis, commentary, final. Channel must be included for every message.<|end|>{% for message in messages %}<|start|>"
    "{% if message.role == 'assistant' %}{% if '<|channel|>final<|message|>' in message.content %}"
    "{{ raise_exception('You have passed a message containing <|channel|> tags in the content field.') }}{% endif %}"
    "assistant<|channel|>final<|message|>{{ message.content }}{% if loop.last and not add_generation_prompt %}<|return|>"
    "{% else %}<|end|>{% endif %}{% elif message.role == 'system' %}developer<|message|># Instructions\n\n"
    "{{ message.content }}\n\n<|end|>{% else %}user<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""The published chat template without tools and earlier reasoning."""

MIXTRAL = dict(
    max_position_embeddings=32768,
    model_type="mixtral",
    num_experts_per_tok=2,
    num_local_experts=8,
    rope_theta=1000000.0,
    router_aux_loss_coef=0.02,
    sliding_window=None,
    torch_dtype="bfloat16",
)
GRANITE = dict(
    attention_dropout=0.1,
    attention_multiplier=0.015625,
    bos_token_id=0,
    embedding_multiplier=12.0,
    eos_token_id=0,
    hidden_size=1024,
    intermediate_size=512,
    logits_scaling=6.0,
    max_position_embeddings=131072,
    model_type="granitemoe",
    num_attention_heads=16,
    num_experts_per_tok=8,
    num_hidden_layers=24,
    num_key_value_heads=8,
    num_local_experts=32,
    pad_token_id=0,
    residual_multiplier=0.22,
    rope_theta=1500000.0,
    router_aux_loss_coef=0.0,
    tie_word_embeddings=True,
    torch_dtype="bfloat16",
    vocab_size=49155,
)
OLMOE = dict(
    intermediate_size=1024,
    max_position_embeddings=4096,
    model_type="olmoe",
    num_experts=64,
    num_experts_per_tok=8,
    rope_theta=10000.0,
    torch_dtype="bfloat16",
)
QWEN3 = dict(
    bos_token_id=151643,
    eos_token_id=151645,
    head_dim=128,
    intermediate_size=5472,
    max_position_embeddings=262144,
    max_window_layers=28,
    model_type="qwen3_moe",
    norm_topk_prob=True,
    num_experts=128,
    num_experts_per_tok=8,
    num_hidden_layers=48,
    rope_theta=10000000,
    torch_dtype="bfloat16",
)

PUBLISHED = {
    **dict.fromkeys(("olmoe", "olmoe-base", "olmoe-0125-instruct"), OLMOE),
    "gpt-oss": GPT_OSS,
    "mixtral": MIXTRAL,
    "deepseek-moe": DEEPSEEK,
    "qwen3-moe": QWEN3,
    "granite-moe-1b": GRANITE,
}
"""By option of conf/model."""
