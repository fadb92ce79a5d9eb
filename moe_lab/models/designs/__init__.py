"""DeepSeek-MoE-16B, and MoE designs for pre-training: two backbones, five routers, shared experts,
a selection bias.

Importing this package registers both configurations with transformers' Auto classes. A
configuration imports its modeling code when the first one is built, so that reading other models'
configurations stays fast.
"""

from transformers import AutoConfig

from moe_lab.models.designs.configuration import DeepseekConfig, MoeDesignConfig

for _config in (DeepseekConfig, MoeDesignConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
