"""Methods that change routing, against full forward passes in float64 with experts that are chosen by hand."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.models.facts import ModelFacts
from moe_lab.routing import find_routers
from tests.support import rounding
from tests.support.opened_methods import answered

FAMILIES = ("olmoe", "mixtral", "gpt_oss", "deepseek_v3")
STEPS = 3
PAIRS = [("three pens", " and"), ("three pens", " 7"), ("a", " b")]
PROMPTS = [(prompt, {"max_gen_toks": STEPS, "until": []}) for prompt in ("three pens", "a", "one")]
FACTS = ModelFacts(
    name="x", path=None, revision=None, commit=None, family="olmoe", dtype="float32", moe_layers=4, experts=6, top_k=2,
    max_length=512,
)  # fmt: skip


def open_groups(router: Any, scores: Any) -> list[int]:
    """DeepSeek-V3's groups of experts that a token may take."""
    groups = scores.unflatten(0, (router.num_group, -1))
    return groups.topk(2).values.sum(-1).argsort(descending=True)[: router.topk_group].tolist()


def open_experts(router: Any, scores: Any) -> list[int]:
    """The experts that a token may take, by falling scores."""
    order = scores.argsort(descending=True).tolist()
    if not hasattr(router, "num_group"):
        return order
    size, best = len(scores) // router.num_group, open_groups(router, scores)
    return [expert for expert in order if expert // size in best]


def weights_of(kind: str, router: Any, logits: Any, experts: list[int]) -> Any:
    """The weights of a token's experts by the rule of the family."""
    if kind == "gpt_oss":
        return logits[experts].softmax(-1)
    if kind == "deepseek_v3":
        chosen = logits.sigmoid()[experts]
        return chosen / chosen.sum() * router.routed_scaling_factor
    chosen = logits.softmax(-1)[experts]
    return chosen if kind == "olmoe" else chosen / chosen.sum()


def routed_pass(model64: Any, ids: list[int], route: Callable[[int, Any, Any], Any]) -> Any:
    """float64 [S, V] of one pass in which `route(layer, router, output)` replaces each router's output."""
    handles = [
        router.module.register_forward_hook(
            lambda module, args, output, layer=router.layer: route(layer, module, output)
        )
        for router in find_routers(model64)
    ]
    with torch.no_grad():
        logits = model64(torch.tensor([ids]), use_cache=False).logits[0].double()
    for handle in handles:
        handle.remove()
    return logits


def check_answers(lm: Any, log_probs: Callable[[list[int]], Any], eos: int) -> None:
    """Scores of PAIRS and texts of PROMPTS are those of `log_probs`: token ids -> float64 [S, V] of one pass."""
    expected = []
    for pair in PAIRS:
        context, answer = map(list, lm.encode_pair(*pair))
        probs, target = log_probs(context + answer)[len(context) - 1 : -1], torch.tensor(answer)
        greedy = bool((probs.argmax(-1) == target).all())
        expected.append((float(probs.gather(1, target[:, None]).sum()), greedy))
    found = answered(lm, "loglikelihood", PAIRS)
    assert [value for value, _ in found] == rounding.approx([value for value, _ in expected], 4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    for text, (prompt, _) in zip(answered(lm, "generate_until", PROMPTS), PROMPTS, strict=True):
        start = list(lm.tok_encode(prompt))
        ids = list(start)
        while len(ids) < len(start) + STEPS and ids[-1] != eos:
            ids.append(int(log_probs(ids)[-1].argmax()))
        assert text == lm.tok_decode(ids[len(start) :])


def both_answers(lm: Any) -> list[Any]:
    """Answers to PAIRS and PROMPTS."""
    return [answered(lm, "loglikelihood", PAIRS), answered(lm, "generate_until", PROMPTS)]


def base_answers(model: Any, tokenizer: Any) -> list[Any]:
    """`both_answers` of the base model."""
    return both_answers(EngineLM(model, tokenizer, progress=False))


def without_weakest(weights_TK):
    return weights_TK.scatter(-1, weights_TK.argmin(dim=-1, keepdim=True), 0)


def dropping(model):
    """A copy whose blocks drop the weakest expert themselves."""
    changed = copy.deepcopy(model)
    for router in find_routers(changed):
        router.block.experts.register_forward_pre_hook(
            lambda module, args: (*args[:2], without_weakest(args[2]), *args[3:])
        )
    return changed
