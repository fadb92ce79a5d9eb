"""The table of model families: their router classes, rules and seams, and their numbers of MoE
layers.

A new family of transformers needs a row of `FAMILIES`. A router that returns something else than
`(logits, weights, indices)` needs a seam in `rules.py` too. Routers are recognised by class, never
by a name such as "gate".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from torch import nn

from moe_lab.routing import rules
from moe_lab.routing.rules import Rule, Seam

CountLayers = Callable[[Any], int]
"""Model configuration -> number of MoE layers."""


def every_layer(config: Any) -> int:
    return config.num_hidden_layers


def layers_after(attribute: str) -> CountLayers:
    """All layers but the first ones, whose number is this attribute."""
    return lambda config: max(0, config.num_hidden_layers - getattr(config, attribute))


def marked_layers(attribute: str, kind: str) -> CountLayers:
    """Layers of this kind, where this attribute lists the kinds of all layers."""
    return lambda config: list(getattr(config, attribute)).count(kind)


def layers_if(attribute: str) -> CountLayers:
    """Every layer; none for a dense model of the family, whose attribute is 0 or false."""
    return lambda config: config.num_hidden_layers if getattr(config, attribute) else 0


def sparse_step(config: Any) -> int:
    """Every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    if config.num_experts == 0:
        return 0
    count = 0
    for layer in range(config.num_hidden_layers):
        is_step = (layer + 1) % config.decoder_sparse_step == 0
        if is_step and layer not in config.mlp_only_layers:
            count += 1
    return count


def deepseek_layers(config: Any) -> int:
    """The layers that `is_moe_layer` of the configuration names."""
    return sum(config.is_moe_layer(layer) for layer in range(config.num_hidden_layers))


def ernie_layers(config: Any) -> int:
    """Every `moe_layer_interval`-th layer from the first to the last MoE layer."""
    first = config.moe_layer_start_index
    last = config.moe_layer_end_index
    if last == -1:
        last = config.num_hidden_layers - 1
    count = 0
    for layer in range(config.num_hidden_layers):
        is_step = (layer + 1) % config.moe_layer_interval == 0
        if is_step and first <= layer <= last:
            count += 1
    return count


listed_layers = marked_layers("mlp_layer_types", "sparse")


_UNIT = (
    "its router decides once for all tokens of a {unit}, at the first one. Another decision for a "
    "single token (noise, given experts) would break up the {unit}, and text that begins inside it "
    "lacks its decision"
)
FIXED = {
    "word": _UNIT.format(unit="word"),
    "sentence": _UNIT.format(unit="sentence"),
    "word-hash": "its router takes the experts of a word by the id of its first token, and has no "
    "scores",
    "expert": "its experts choose their tokens: a token has no fixed number of experts, and its "
    "routing depends on later tokens",
}
"""Reasons by the configuration's `router`."""


def fixed_routing(config: Any) -> str | None:
    """Why no policy may change the routing of this design; None where one may."""
    return FIXED.get(config.router)


@dataclass(frozen=True)
class Family:
    """A family of Mixture-of-Experts models."""

    name: str
    """Name for users."""
    model_type: str
    """`model_type` of its (text) configuration."""
    router: str
    """Class name of its router."""
    rule: Rule
    moe_layers: CountLayers = every_layer
    experts: str = "num_experts"
    """Attribute of the configuration: routed experts per layer."""
    top_k: str = "num_experts_per_tok"
    """Attribute of the configuration: experts per token."""
    bias: str | None = None
    """Attribute of the router or its MoE block: the bias added to the scores by which experts are
    chosen."""
    fixed_top_k: bool = False
    """Whether the number of experts per token cannot be changed (in LongCat it differs between
    tokens)."""
    seam: Seam | None = None
    """None: its routers return (logits, weights, indices)."""
    module: str | None = None
    """transformers' module name of the family, if it is not `model_type`; or the full name of a
    module."""
    block: str | None = None
    """Class name of the MoE block, if routers of this class also have other uses."""
    within: str | None = None
    """Name of the module around routers of text, if routers of this class also read images."""
    image_text: tuple[str, ...] = ()
    """`model_type`s of the image-and-text models that run with this text model."""
    fixed: Callable[[Any], str | None] = lambda config: None
    """Configuration -> why no policy may read or change the routing of single tokens; None where
    one may."""

    @property
    def router_class(self) -> str:
        """Qualified name of the router's class."""
        family = self.module or self.model_type
        module = family if "." in family else f"transformers.models.{family}.modeling_{family}"
        return f"{module}.{self.router}"

    @property
    def chooses_by_logits(self) -> bool:
        """Whether its routers choose experts by the same logits that weights are computed from."""
        return self.rule.noise == rules.LOGITS and self.bias is None

    @property
    def chosen_by(self) -> str:
        """The scores by which its routers choose experts, for messages and tables."""
        return self.rule.noise + (" plus a bias" if self.bias else "")

    def num_experts(self, config: Any) -> int:
        """Routed experts per MoE layer of this (text) configuration; the maximum, if layers
        differ."""
        return _most(attrgetter(self.experts)(config))

    def experts_per_token(self, config: Any) -> int:
        """Experts per token of this (text) configuration; the maximum, if layers differ."""
        return _most(attrgetter(self.top_k)(config))

    def most_experts_per_token(self, config: Any) -> int:
        """Maximum of experts per token: all experts, or those of the groups that are chosen
        together."""
        experts = self.num_experts(config)
        groups = getattr(config, "n_group", None)
        if not groups:
            return experts
        return experts // groups * config.topk_group


def _most(value: int | list[int]) -> int:
    """A number, or the largest of those of all layers."""
    return max(value) if isinstance(value, list) else value


_BIAS = "e_score_correction_bias"
_V3_RULE = rules.sigmoid(eps=1e-20, scale="routed_scaling_factor")
_v3 = partial(
    Family, rule=_V3_RULE, moe_layers=listed_layers, experts="n_routed_experts", bias=_BIAS
)
"""A family with the router and the names of DeepSeek-V3."""
_granite = partial(Family, rule=rules.softmax_of_chosen(), experts="num_local_experts")
"""A family with the router and the names of Granite-MoE."""
_DESIGN = Family(
    "MoE design",
    "moe_design",
    "DesignRouter",
    rules.softmax(),
    deepseek_layers,
    experts="n_routed_experts",
    module="moe_lab.models.designs.routers",
    fixed=fixed_routing,
)
_BIASED_DESIGN = replace(
    _DESIGN, router="BiasedTopKRouter", rule=rules.BIASED, bias="selection_bias"
)

# fmt: off
FAMILIES = (
    _v3("A.X K1", "axk1", "AXK1TopkRouter"),
    Family("A.X K2", "axk2", "AXK2TopkRouter", rules.sigmoid(eps=1e-20, scale="routed_scaling_factor", closed=0.0),
           listed_layers, experts="n_routed_experts", bias=_BIAS),
    Family("AFMoE (Trinity)", "afmoe", "AfmoeTokenChoiceRouter", rules.sigmoid(eps=1e-20, scale="route_scale"),
           layers_after("num_dense_layers"), bias="expert_bias"),
    Family("Aria", "aria_text", "AriaTextTopKRouter", rules.softmax_of_chosen(), experts="moe_num_experts",
           top_k="moe_topk", module="aria", image_text=("aria",)),
    _v3("Bailing (Ling, hybrid)", "bailing_hybrid", "BailingHybridTopkRouter", experts="num_experts"),
    Family("Beam", "beam", "BeamTopKRouter", rules.sigmoid(eps=1e-20), listed_layers, bias=_BIAS),
    Family("Cohere2-MoE", "cohere2_moe", "Cohere2MoeTopKRouter", rules.COHERE, listed_layers),
    Family("DBRX", "dbrx", "DbrxFFN", rules.DBRX, lambda config: config.n_layers,
           experts="ffn_config.moe_num_experts", top_k="ffn_config.moe_top_k", seam=rules.dbrx),
    Family("DeepSeek-MoE", "deepseek", "DeepseekTopKRouter", rules.softmax(), deepseek_layers,
           experts="n_routed_experts", module="moe_lab.models.designs.deepseek"),
    Family("DeepSeek-V2", "deepseek_v2", "DeepseekV2TopkRouter", rules.DEEPSEEK_V2,
           layers_after("first_k_dense_replace"), experts="n_routed_experts"),
    _v3("DeepSeek-V3", "deepseek_v3", "DeepseekV3TopkRouter", moe_layers=layers_after("first_k_dense_replace"),
        image_text=("kimi_k25",)),
    _v3("DeepSeek-V3.2", "deepseek_v32", "DeepseekV32TopkRouter"),
    _v3("dots.llm1", "dots1", "Dots1TopkRouter", moe_layers=layers_after("first_k_dense_replace")),
    _v3("dots3-note", "dots3_note_text", "Dots3NoteTextTopkRouter", module="dots3_note"),
    Family("ERNIE-4.5-MoE", "ernie4_5_moe", "Ernie4_5_MoeTopKRouter", rules.ERNIE, ernie_layers,
           bias="moe_statics.e_score_correction_bias"),
    Family("ERNIE-4.5-VL-MoE", "ernie4_5_vl_moe_text", "Ernie4_5_VLMoeMoeTopKRouter", rules.ERNIE, listed_layers,
           bias="moe_statics.e_score_correction_bias", module="ernie4_5_vl_moe", within="text_moe",
           image_text=("ernie4_5_vl_moe",)),
    _v3("EXAONE-MoE", "exaone_moe", "ExaoneMoeTopkRouter", experts="num_experts"),
    Family("FlexOlmo", "flex_olmo", "FlexOlmoTopKRouter", rules.softmax()),
    Family("Flint", "flint", "FlintTopKRouter", rules.sigmoid(), sparse_step),
    Family("Gemma-4", "gemma4_text", "Gemma4TextRouter", rules.GEMMA, layers_if("enable_moe_block"),
           top_k="top_k_experts", module="gemma4"),
    _v3("GLM-4-MoE", "glm4_moe", "Glm4MoeTopkRouter", moe_layers=layers_after("first_k_dense_replace")),
    _v3("GLM-4-MoE-Lite", "glm4_moe_lite", "Glm4MoeLiteTopkRouter"),
    _v3("GLM-4.5V", "glm4v_moe_text", "Glm4vMoeTextTopkRouter", moe_layers=layers_after("first_k_dense_replace"),
        module="glm4v_moe", image_text=("glm4v_moe",)),
    _v3("GLM-5-Next", "glm5_next_text", "Glm5NextTextTopkRouter", module="glm5_next", image_text=("glm5_next",)),
    _v3("GLM-MoE-DSA (GLM-5)", "glm_moe_dsa", "GlmMoeDsaTopkRouter"),
    _granite("GPT-OSS", "gpt_oss", "GptOssTopKRouter", image_text=("internvl",)),
    _granite("Granite-MoE", "granitemoe", "GraniteMoeTopKRouter"),
    _granite("Granite-MoE-Hybrid (Granite-4)", "granitemoehybrid", "GraniteMoeHybridTopKRouter",
             moe_layers=layers_if("num_local_experts")),
    _granite("Granite-MoE-Shared", "granitemoeshared", "GraniteMoeSharedTopKRouter"),
    _granite("Granite-MoE-SWA", "granitemoe_swa", "GraniteMoeSWATopKRouter"),
    Family("Hunyuan 3", "hy_v3", "HYV3TopKRouter", rules.sigmoid(eps=1e-20, scale="router_scaling_factor"),
           listed_layers, bias=_BIAS),
    _v3("Hunyuan 4", "hy_v4", "HYV4TopkRouter"),
    _v3("Hunyuan 4 VL", "hy_v4_vl_text", "HYV4VLTopkRouter", module="hy_v4_vl", image_text=("hy_v4_vl",)),
    Family("Hunyuan-MoE", "hunyuan_v1_moe", "HunYuanMoEV1Gate", rules.softmax(renormalize=True), top_k="moe_topk"),
    _v3("Inkling-2", "inkling2_text", "Inkling2TopKRouter", moe_layers=every_layer, module="inkling2",
        image_text=("inkling2",)),
    Family("Jamba", "jamba", "JambaTopKRouter", rules.softmax(renormalize=False),
           lambda config: sum(count > 1 for count in config.layers_num_experts)),
    _granite("JetMoE", "jetmoe", "JetMoeTopKGating", seam=rules.jetmoe, block="JetMoeMoE", fixed_top_k=True),
    _v3("Kimi-Linear", "kimi_linear", "KimiLinearTopkRouter", experts="num_experts"),
    Family("Kolibri-1", "kolibri1", "Kolibri1TopKRouter", rules.KOLIBRI, bias=_BIAS),
    Family("Laguna", "laguna", "LagunaTopKRouter", rules.sigmoid(), listed_layers, bias=_BIAS),
    Family("LFM2-MoE", "lfm2_moe", "Lfm2MoeTopKRouter", rules.sigmoid(eps=1e-6, scale="routed_scaling_factor"),
           layers_after("num_dense_layers"), bias="expert_bias"),
    Family("Llama-4", "llama4_text", "Llama4Router", rules.LLAMA4, lambda config: len(config.moe_layers),
           experts="num_local_experts", seam=rules.llama4, module="llama4"),
    Family("LongCat-Flash", "longcat_flash", "LongcatFlashTopkRouter", rules.LONGCAT,
           lambda config: config.num_layers,  # each has one MoE block and counts as two
           experts="n_routed_experts", top_k="moe_topk", bias=_BIAS, fixed_top_k=True),
    Family("Mellum", "mellum", "MellumTopKRouter", rules.softmax(), listed_layers),
    _v3("MiMo-V2-Flash", "mimo_v2_flash", "MiMoV2FlashTopkRouter"),
    Family("MiniMax", "minimax", "MiniMaxTopKRouter", rules.softmax(renormalize=True, cast=False),
           experts="num_local_experts"),
    Family("MiniMax-M2", "minimax_m2", "MiniMaxM2TopKRouter", rules.sigmoid(), experts="num_local_experts",
           bias=_BIAS),
    Family("MiniMax-M3", "minimax_m3_vl_text", "MiniMaxM3VLTopKRouter", rules.sigmoid(), listed_layers,
           experts="num_local_experts", bias=_BIAS, module="minimax_m3_vl", image_text=("minimax_m3_vl",)),
    Family("Mistral 4", "mistral4", "Mistral4TopkRouter", rules.MISTRAL, layers_after("first_k_dense_replace"),
           experts="n_routed_experts", image_text=("mistral3", "mistral4")),
    Family("Mistral Large 4", "mistral_large4_text", "MistralLarge4TextTopkRouter", rules.MISTRAL, listed_layers,
           experts="n_routed_experts", module="mistral_large4", image_text=("mistral_large4",)),
    Family("Mixtral", "mixtral", "MixtralTopKRouter", rules.softmax(renormalize=True, cast=False),
           experts="num_local_experts"),
    _DESIGN,
    Family("Muse-Spark", "muse_spark_text", "MuseSparkTopkRouter",
           rules.sigmoid(eps=1e-15, scale="routed_scaling_factor"), listed_layers, experts="num_local_experts",
           bias=_BIAS, module="muse_spark", image_text=("muse_spark",)),
    _v3("Nemotron-H", "nemotron_h", "NemotronHTopkRouter", moe_layers=marked_layers("layers_block_type", "moe"),
        image_text=("nemotron_h_omni",)),
    Family("OLMoE", "olmoe", "OlmoeTopKRouter", rules.softmax()),
    Family("Phi-MoE", "phimoe", "PhimoeTopKRouter", rules.SPARSE_MIXER, experts="num_local_experts",
           fixed_top_k=True),
    Family("Qwen2-MoE", "qwen2_moe", "Qwen2MoeTopKRouter", rules.softmax(), sparse_step),
    Family("Qwen3-MoE", "qwen3_moe", "Qwen3MoeTopKRouter", rules.softmax(), sparse_step, image_text=("internvl",)),
    Family("Qwen3-VL-MoE", "qwen3_vl_moe_text", "Qwen3VLMoeTextTopKRouter", rules.softmax(renormalize=True),
           sparse_step, module="qwen3_vl_moe", image_text=("qwen3_vl_moe",)),
    Family("Qwen3-Next", "qwen3_next", "Qwen3NextTopKRouter", rules.softmax(), sparse_step),
    Family("Qwen3.5-MoE", "qwen3_5_moe_text", "Qwen3_5MoeTopKRouter", rules.softmax(renormalize=True),
           module="qwen3_5_moe"),
    Family("Qwen4-Exp", "qwen4_exp_text", "Qwen4ExpTextTopKRouter", rules.softmax(), module="qwen4_exp"),
    _v3("Solar-Open", "solar_open", "SolarOpenTopkRouter", moe_layers=every_layer),
    Family("Step-3.7", "step3p5", "Step3p7TopKRouter", rules.sigmoid(), listed_layers, experts="n_routed_experts",
           bias=_BIAS, module="step3p7", image_text=("step3p7",)),
)
# fmt: on

UNSUPPORTED = {
    "deepseek_v4": "its first MoE layers choose experts by the token's id, without scores",
    "doge": "its experts are retrieved by product keys, without a router module",
    "inkling_text": (
        "its router weighs shared experts and chosen ones together, "
        "so the chosen cannot be changed alone"
    ),
    "zaya": (
        "each of its routers reads the state of the one before it, and one choice skips the experts"
    ),
}
"""Models of transformers whose experts no policy can change, by `model_type`, with the reason."""

REFUSED_IMAGE_TEXT = {
    "deepseek_ocr2": "it transcribes images, and was not trained to answer texts",
    "diffusion_gemma": "it writes the tokens of a block together, so a text has no log-likelihood",
    "inkling2_loop": "some of its layers run several times for a token, and route it anew each time",
    "inkling_mm_model": "the routers of its text model cannot be changed (`inkling_text`)",
    "unlimited_ocr": "it transcribes images, and was not trained to answer texts",
}
"""Image-and-text models of transformers that cannot be asked with text, by `model_type`, with the
reason."""

_BY_CLASS = {family.router_class: family for family in (*FAMILIES, _BIASED_DESIGN)}
_BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES}


def image_text_types() -> list[str]:
    """The `model_type`s of all image-and-text models that run, in order."""
    names: set[str] = set()
    for family in FAMILIES:
        names.update(family.image_text)
    return sorted(names)


def supported() -> list[str]:
    """Names of the supported families."""
    return [family.name for family in FAMILIES]


def family_of(module: nn.Module) -> Family | None:
    """The family of a router module; None for any other module."""
    for cls in type(module).__mro__:
        family = _BY_CLASS.get(f"{cls.__module__}.{cls.__qualname__}")
        if family is not None:
            return family
    return None


def family_of_type(model_type: str, selection_bias: bool = False) -> Family | None:
    """The family of a `model_type`; None for any other model. `selection_bias`: whether a design
    has one."""
    if selection_bias:
        return _BIASED_DESIGN
    return _BY_MODEL_TYPE.get(model_type)
