"""Methods that change routing, against full forward passes in float64 with experts that are chosen
by hand."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.models.facts import ModelFacts
from moe_lab.routing import find_routers
from tests.support.ensembles import answered, assert_log_likelihoods

FAMILIES = ("olmoe", "mixtral", "gpt_oss", "deepseek_v3")
STEPS = 3
PAIRS = [("three pens", " and"), ("three pens", " 7"), ("a", " b")]
PROMPTS = [(prompt, {"max_gen_toks": STEPS, "until": []}) for prompt in ("three pens", "a", "one")]
FACTS = ModelFacts(
    name="x",
    path=None,
    revision=None,
    commit=None,
    family="olmoe",
    dtype="float32",
    moe_layers=4,
    experts=6,
    top_k=2,
    max_length=512,
)


def open_groups(router: Any, scores: Any) -> list[int]:
    """DeepSeek-V3's groups of experts that a token may take."""
    groups = scores.unflatten(0, (router.num_group, -1))
    return groups.topk(2).values.sum(-1).argsort(descending=True)[: router.topk_group].tolist()


def open_experts(router: Any, scores: Any) -> list[int]:
    """The experts that a token may take, by falling scores."""
    order = scores.argsort(descending=True).tolist()
    if not hasattr(router, "num_group"):
        return order
    group_size = len(scores) // router.num_group
    groups = open_groups(router, scores)
    return [expert for expert in order if expert // group_size in groups]


def weights_of(kind: str, router: Any, logits: Any, experts: list[int]) -> Any:
    """The weights of a token's experts by the rule of the family."""
    if kind == "gpt_oss":
        return logits[experts].softmax(-1)
    if kind == "deepseek_v3":
        chosen = logits.sigmoid()[experts]
        return chosen / chosen.sum() * router.routed_scaling_factor
    chosen = logits.softmax(-1)[experts]
    if kind == "olmoe":
        return chosen
    return chosen / chosen.sum()


def routed_pass(model64: Any, ids: list[int], route: Callable[[int, Any, Any], Any]) -> Any:
    """float64 [S, V] of one pass; `route(layer, router, output)` replaces a router's output."""
    handles = []
    for router in find_routers(model64):

        def replace_output(module: Any, args: Any, output: Any, layer: int = router.layer) -> Any:
            return route(layer, module, output)

        handles.append(router.module.register_forward_hook(replace_output))
    with torch.no_grad():
        logits = model64(torch.tensor([ids]), use_cache=False).logits[0].double()
    for handle in handles:
        handle.remove()
    return logits


def check_answers(lm: Any, log_probs: Callable[[list[int]], Any], eos: int) -> None:
    """Scores of PAIRS and texts of PROMPTS are those of `log_probs`.

    It returns float64 [S, V] for S token ids.
    """
    expected = []
    for pair in PAIRS:
        context, answer = lm.encode_pair(*pair)
        log_probs_SV = log_probs([*context, *answer])
        log_probs_CV = log_probs_SV[len(context) - 1 : -1]
        target_C = torch.tensor(list(answer))
        log_likelihood = log_probs_CV.gather(1, target_C[:, None]).sum()
        is_greedy = (log_probs_CV.argmax(-1) == target_C).all()
        expected.append((float(log_likelihood), bool(is_greedy)))
    assert_log_likelihoods(answered(lm, "loglikelihood", PAIRS), expected, tokens=4)

    texts = answered(lm, "generate_until", PROMPTS)
    for text, (prompt, _) in zip(texts, PROMPTS, strict=True):
        ids = list(lm.tok_encode(prompt))
        new_tokens: list[int] = []
        while len(new_tokens) < STEPS and [*ids, *new_tokens][-1] != eos:
            log_probs_SV = log_probs([*ids, *new_tokens])
            new_tokens.append(int(log_probs_SV[-1].argmax()))
        assert text == lm.tok_decode(new_tokens)


def both_answers(lm: Any) -> list[Any]:
    """Answers to PAIRS and PROMPTS."""
    return [answered(lm, "loglikelihood", PAIRS), answered(lm, "generate_until", PROMPTS)]


def base_answers(model: Any, tokenizer: Any) -> list[Any]:
    """`both_answers` of the base model."""
    return both_answers(EngineLM(model, tokenizer, progress=False))


def without_weakest(weights_TK: Any) -> Any:
    """Weights whose smallest one is 0."""
    return weights_TK.scatter(-1, weights_TK.argmin(dim=-1, keepdim=True), 0)


def dropping(model: Any) -> Any:
    """A copy whose blocks drop the weakest expert themselves."""

    def drop_weakest(experts: Any, args: tuple) -> tuple:
        hidden, index_TK, weights_TK, *other_arguments = args
        return hidden, index_TK, without_weakest(weights_TK), *other_arguments

    changed = copy.deepcopy(model)
    for router in find_routers(changed):
        router.block.experts.register_forward_pre_hook(drop_weakest)
    return changed
