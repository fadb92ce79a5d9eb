"""RoE (Roster of Experts) inside vLLM: a plug-in of model classes and a check of arguments.

vLLM calls `register` in each of its processes. An engine without `additional_config={"roe": ...}`
runs as before.
"""

ARCHITECTURES = {
    "MixtralForCausalLM": "moe_lab_vllm.models:RoEMixtral",
    "OlmoeForCausalLM": "moe_lab_vllm.models:RoEOlmoe",
    "Qwen3MoeForCausalLM": "moe_lab_vllm.models:RoEQwen3Moe",
}
"""Architecture in a model's configuration -> the class that runs it."""


def register() -> None:
    """Register the model classes, and the check of the configuration for all architectures."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from moe_lab_vllm.check import checked

    for architecture, model in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, model)
    for architecture in ModelRegistry.get_supported_archs():
        MODELS_CONFIG_MAP[architecture] = checked(MODELS_CONFIG_MAP.get(architecture))
