"""What routers do, one token at a time in Python's floats: written from the models' papers
and code, for all families.

Shares nothing with `moe_lab.routing` but the keyed noise, which the callers bring.
"""

import math
import re
from dataclasses import dataclass
from itertools import chain

import torch

from moe_lab.routing.samples import NoisyTokens

_ROUTER = re.compile(
    r"(Top[kK]Router|TokenChoiceRouter|TextRouter|V1Gate|TopKGating|Llama4Router|DbrxFFN)$"
)


@dataclass(frozen=True)
class Spec:
    """What one family does with the logits of a token."""

    score: str = "softmax"
    """softmax, sigmoid, or chosen (softmax over the logits of the chosen)."""
    noisy: str = "logits"
    """What noise is added to: logits, or scores (with their bias)."""
    bias: str | None = None
    """Attribute path from the MoE block."""
    renormalize: bool | str = False
    """Yes, no, or the attribute of the configuration that says it."""
    eps: float = 0.0
    scale: str | None = None
    """Attribute of the configuration."""
    groups: int | None = None
    sums_probabilities: bool = False
    """Whether groups are compared by probabilities, where experts are chosen by logits."""
    """How many of a group's best are summed; None: no groups."""
    logits_are_probabilities: bool = False


_V3 = dict(
    score="sigmoid",
    noisy="scores",
    eps=1e-20,
    renormalize="norm_topk_prob",
    scale="routed_scaling_factor",
)
_GATE_BIAS = "gate.e_score_correction_bias"
_DEEPSEEK_V3 = Spec(**_V3, bias=_GATE_BIAS, groups=2)
_NORM_KEY = Spec(renormalize="norm_topk_prob")
_CHOSEN = Spec("chosen")
_ERNIE = Spec("softmax", "scores", "gate.moe_statics.e_score_correction_bias", True)
_MISTRAL = dict(eps=1e-20, scale="routed_scaling_factor", groups=2, sums_probabilities=True)

_SHARED = {
    (
        "axk1 axk2 bailing_hybrid deepseek_v3 deepseek_v32 dots1 dots3_note_text exaone_moe "
        "glm4_moe glm4_moe_lite glm4v_moe_text glm5_next_text glm_moe_dsa hy_v4 hy_v4_vl_text "
        "kimi_linear mimo_v2_flash nemotron_h solar_open"
    ): _DEEPSEEK_V3,
    (
        "aria_text cohere2_moe gpt_oss granitemoe granitemoe_swa granitemoehybrid "
        "granitemoeshared jetmoe"
    ): _CHOSEN,
    (
        "deepseek flex_olmo mellum moe_design olmoe qwen2_moe qwen3_moe qwen3_next qwen4_exp_text"
    ): _NORM_KEY,
    "dbrx hunyuan_v1_moe minimax mixtral qwen3_5_moe_text qwen3_vl_moe_text": Spec(
        renormalize=True
    ),
}
"""Names of several families -> the rule of all of them.

DBRX's small configuration divides by the sum.
"""
SPECS = {name: spec for names, spec in _SHARED.items() for name in names.split()} | {
    "afmoe": Spec("sigmoid", "scores", "expert_bias", True, 1e-20, "route_scale"),
    "beam": Spec("sigmoid", "scores", _GATE_BIAS, "norm_topk_prob", 1e-20, groups=2),
    "deepseek_v2": Spec(scale="routed_scaling_factor", groups=1),
    "ernie4_5_moe": _ERNIE,
    "ernie4_5_vl_moe_text": _ERNIE,
    "flint": Spec("sigmoid", "scores", None, "norm_topk_prob"),
    "gemma4_text": Spec(renormalize=True, logits_are_probabilities=True),
    "hy_v3": Spec(
        "sigmoid", "scores", "e_score_correction_bias", True, 1e-20, "router_scaling_factor"
    ),
    "inkling2_text": Spec("sigmoid", "scores", _GATE_BIAS, True, 1e-20, "routed_scaling_factor"),
    "jamba": Spec(),
    "kolibri1": Spec("sigmoid", "logits", _GATE_BIAS, "norm_topk_prob"),
    "laguna": Spec("sigmoid", "scores", _GATE_BIAS, True),
    "lfm2_moe": Spec(
        "sigmoid", "scores", "expert_bias", "norm_topk_prob", 1e-06, "routed_scaling_factor"
    ),
    "llama4_text": Spec("sigmoid"),
    "longcat_flash": Spec(
        "softmax", "scores", "router.e_score_correction_bias", scale="routed_scaling_factor"
    ),
    "minimax_m2": Spec("sigmoid", "scores", "e_score_correction_bias", True),
    "minimax_m3_vl_text": Spec("sigmoid", "scores", _GATE_BIAS, True),
    "mistral4": Spec(**_MISTRAL, renormalize="norm_topk_prob"),
    "mistral_large4_text": Spec(**_MISTRAL, renormalize=True),
    "muse_spark_text": Spec("sigmoid", "scores", _GATE_BIAS, True, 1e-15, "routed_scaling_factor"),
    "phimoe": Spec("sparse mixer"),
    "step3p5": Spec("sigmoid", "scores", _GATE_BIAS, True),
}


MASK = 2**64 - 1


def slow_hash(*values: int) -> int:
    """SplitMix64 of a sequence, in Python's own integers."""
    z = 0
    for value in values:
        z = ((z ^ (value & MASK)) + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return z


def noisy_tokens(count: int, row: int = 1, document: int = 77) -> NoisyTokens:
    """All tokens of a pass of one sequence, as those of one routing sample."""
    n = torch.arange(count)
    return NoisyTokens(
        n, torch.full_like(n, document), torch.zeros_like(n), torch.full_like(n, row), n
    )


def routers_of(model) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
    """(router, its MoE block) in the order of layers, without the routers of JetMoE's attention and
    those of images."""
    routers = []
    for name, module in model.named_modules():
        reads_text = "attention" not in name and "vision" not in name
        if _ROUTER.search(type(module).__name__) and reads_text:
            routers.append((module, model.get_submodule(name.rpartition(".")[0])))
    return routers


def route(
    spec,
    config,
    router,
    block,
    logits: list[float],
    noise: list[float],
    temperature: float,
    k: int,
    perturbed=False,
):
    """(chosen experts, their weights) of one token; `perturbed`: weights of the noisy logits."""
    if spec.logits_are_probabilities:
        logits = [math.log(value) for value in logits]
    scores = _scores(spec, logits)
    base = logits if spec.noisy == "logits" else scores
    if spec.bias is not None:
        owner = block
        for part in spec.bias.split("."):
            owner = getattr(owner, part)
        base = [value + float(b) for value, b in zip(base, owner.flatten(), strict=True)]
    noisy = [value + temperature * g for value, g in zip(base, noise, strict=True)]
    open_experts = _open(spec, config, noisy)
    chosen = sorted(open_experts, key=lambda e: -noisy[e])[:k]
    if perturbed:
        logits = noisy
        scores = _scores(spec, noisy)
    return chosen, _weights(spec, config, router, logits, scores, chosen)


def _scores(spec, logits):
    if spec.score == "sigmoid":
        return [1 / (1 + math.exp(-value)) for value in logits]
    top = max(logits)
    total = sum(math.exp(value - top) for value in logits)
    return [math.exp(value - top) / total for value in logits]


def _open(spec, config, noisy):
    """Experts of the best groups."""
    count = getattr(config, "n_group", None)
    if spec.groups is None or not count:
        return range(len(noisy))
    compared = _scores(spec, noisy) if spec.sums_probabilities else noisy
    size = len(noisy) // count
    groups = [range(g * size, (g + 1) * size) for g in range(count)]

    def group_score(group):
        """The sum of the group's best scores."""
        scores = sorted((compared[e] for e in group), reverse=True)
        return sum(scores[: spec.groups])

    best_groups = sorted(groups, key=group_score, reverse=True)[: config.topk_group]
    return list(chain.from_iterable(best_groups))


def _weights(spec, config, router, logits, scores, chosen):
    if spec.score == "chosen":
        return _scores(Spec(), [logits[e] for e in chosen])
    if spec.score == "sparse mixer":
        return _sparse_mixer(logits, chosen, router.router_jitter_noise)
    weights = [scores[e] for e in chosen]
    renormalize = spec.renormalize
    if isinstance(renormalize, str):
        renormalize = getattr(config, renormalize)
    if renormalize:
        total = sum(weights) + spec.eps
        weights = [value / total for value in weights]
    if spec.scale:
        weights = [value * getattr(config, spec.scale) for value in weights]
    if spec.logits_are_probabilities:
        scales = router.per_expert_scale[chosen].tolist()
        weights = [value * scale for value, scale in zip(weights, scales, strict=True)]
    return weights


def _sparse_mixer(logits, chosen, jitter):
    """Phi-MoE: a softmax over those left that are not too far below the chosen one."""
    remaining = dict(enumerate(logits))
    weights = []
    for e in chosen:
        near = [
            v for v in remaining.values() if (logits[e] - v) / max(abs(v), logits[e]) <= 2 * jitter
        ]
        weights.append(math.exp(logits[e]) / sum(math.exp(v) for v in near))
        del remaining[e]
    return weights


def install(model, layer: int, positions, draw, temperature: float, perturbed=False) -> list:
    """Route tokens `positions` of the next pass of one sequence with noise at MoE layer `layer`.

    `draw` gives noise [positions, experts] for a number of experts.
    """
    router, block = routers_of(model)[layer]
    config = model.config.get_text_config()
    spec = SPECS[config.model_type]

    def again(logits, weights, index):
        weights = weights.clone()
        index = index.clone()
        for position, noise_row in zip(positions, draw(logits.shape[-1]), strict=True):
            token = (
                logits[position].tolist(),
                noise_row.tolist(),
                temperature,
                index.shape[-1],
                perturbed,
            )
            chosen, new = route(spec, config, router, block, *token)
            index[position] = torch.tensor(chosen)
            weights[position] = torch.tensor(new, dtype=weights.dtype)
        return weights, index

    return _HOOKS.get(config.model_type, _triple)(router, again)


def _triple(router, rerouted):
    def hook(module, args, output):
        logits, weights, index = output
        return (logits, *rerouted(logits, weights, index))

    return [router.register_forward_hook(hook)]


def _llama4(router, rerouted):
    def hook(module, args, output):
        dense, logits = output
        index = logits.topk(module.top_k).indices
        weights, index = rerouted(logits, dense.gather(1, index), index)
        dense = torch.zeros_like(dense)
        for token in range(len(dense)):
            for e, weight in zip(index[token], weights[token], strict=True):
                dense[token, e] = weight
        return dense, logits

    return [router.register_forward_hook(hook)]


def _jetmoe(router, rerouted):
    def hook(module, args, output):
        logits = output[-1]
        index = logits.topk(module.top_k).indices
        weights, index = rerouted(logits, torch.zeros(index.shape, dtype=output[2].dtype), index)
        top_logits = logits.topk(module.top_k)
        for token in range(len(logits)):  # tokens without noise keep the softmax over their chosen
            if not weights[token].any():
                weights[token] = top_logits.values[token].softmax(-1).to(weights.dtype)
        experts = index.flatten().tolist()
        pairs = sorted((expert, place) for place, expert in enumerate(experts))
        order = torch.tensor([pair for _, pair in pairs])
        counts = [experts.count(expert) for expert in range(logits.shape[-1])]
        return order, order // module.top_k, weights.flatten()[order], counts, logits

    return [router.register_forward_hook(hook)]


def _dbrx(block, rerouted):
    seen = []

    def experts_hook(module, args):
        hidden, index, weights = args
        weights, index = rerouted(seen[-1], weights, index)
        return hidden, index, weights

    return [
        block.router.register_forward_hook(lambda module, args, output: seen.append(output)),
        block.experts.register_forward_pre_hook(experts_hook),
    ]


_HOOKS = {"llama4_text": _llama4, "jetmoe": _jetmoe, "dbrx": _dbrx}
