"""C3PO's gradient descent per question, against full forward and backward passes of its neighbours,
side by side.

    python -m benchmarks.c3po

k=3 neighbours with prompts of 100 tokens, 10 steps, the last 5 of 8 layers, 20 core experts,
answers of one token. "Full passes" puts the neighbours' whole prompts through the whole model in
every step, as one batch, with the router's own top-k at the last token (fewer experts than the
core) and no gradients to parameters. "Plain" reads the questions as the base model does, with
their last token's logits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.bench_model import VOCAB, make_model
from benchmarks.measure import side_by_side
from moe_lab.engine.pass_size import CPU_TOKENS
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PromptSuffix, SuffixReplay
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.descent import NeighbourLoss, learning_rates, ngd
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.models.experts import NAME
from moe_lab.routing import Router, Routing, routed

LAYERS = [3, 4, 5, 6, 7]
CORE = 20
K = 3
BUDGET = Budget(CPU_TOKENS)


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (count, length), generator=generator).tolist()


def full_passes(
    model: torch.nn.Module, question: PromptSuffix, neighbours: list[list[int]]
) -> Callable[[], object]:
    """Gradient descent for one question by whole passes."""
    ids_KT = torch.tensor(neighbours)
    gold_K = torch.arange(K)
    model.requires_grad_(False)
    first_rate, last_rate = C3POConfig().learning_rate

    def run() -> None:
        pathways = Pathways(question.pathway_WME[None], LAYERS, CORE)
        optimizer = torch.optim.Adam([pathways.theta])

        def policy(router: Router, routing: Routing) -> Routing | None:
            if router.layer not in LAYERS:
                return None
            T = ids_KT.shape[1]
            last = torch.arange(K) * T + T - 1
            probs_KE = pathways.probs()[router.layer][:, 0].expand(K, -1)
            chosen = probs_KE.topk(routing.index_TK.shape[-1])
            weights_TK = routing.weights_TK.index_copy(0, last, chosen.values)
            index_TK = routing.index_TK.index_copy(0, last, chosen.indices)
            return Routing(routing.logits_TE, weights_TK, index_TK)

        for rate in learning_rates("cosine", first_rate, last_rate, 10):
            optimizer.param_groups[0]["lr"] = rate
            with routed(model, policy):
                logits_KV = model(ids_KT, use_cache=False, logits_to_keep=1).logits[:, -1]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits_KV, gold_K).backward()
            optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=100, help="tokens of a prompt")
    parser.add_argument("--questions", type=int, default=32, help="optimized at once")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = make_model()
    model.set_experts_implementation(NAME)
    N = options.questions
    replay = SuffixReplay(model, LAYERS[0])
    question_ids = prompts(N, options.length, seed=1)
    neighbour_ids = prompts(N * K, options.length, seed=2)
    answers = [[[n % K]] for n in range(N * K)]
    questions = replay.read(question_ids, BUDGET)
    neighbours = replay.read(neighbour_ids, BUDGET, answers)

    def c3po(count: int, neighbours: list[PromptSuffix]) -> torch.Tensor:
        """The logits of the first questions after the descent by their neighbours."""
        suffixes = questions[:count]
        first_pathways = torch.stack([suffix.pathway_WME for suffix in suffixes])
        pathways = Pathways(first_pathways, LAYERS, CORE)
        neighbours_of = [neighbours[n * K : (n + 1) * K] for n in range(count)]
        loss = NeighbourLoss(replay, neighbours_of, torch.ones(count, K))
        changed, _ = ngd(pathways, loss, C3POConfig())
        return replay.logits(suffixes, changed.remix("topk"))

    seconds = side_by_side(
        {
            "full passes": full_passes(model, questions[0], neighbour_ids[:K]),
            "one": lambda: c3po(1, neighbours),
            "batch": lambda: c3po(N, neighbours),
            "batch, read": lambda: c3po(N, replay.read(neighbour_ids, BUDGET, answers)),
            "plain": lambda: replay.read(question_ids, BUDGET),
        },
        options.rounds,
    )
    rows = {
        "full passes of the neighbours": seconds["full passes"],
        "C3PO, one question at a time": seconds["one"],
        f"C3PO, {N} questions at once": seconds["batch"] / N,
        f"C3PO, {N} at once, neighbours read anew": seconds["batch, read"] / N,
        "plain evaluation": seconds["plain"] / N,
    }
    full = rows["full passes of the neighbours"]
    plain = rows["plain evaluation"]
    print("| per question | ms | times faster than full passes | evaluation in all, times plain |")
    print("|---|---:|---:|---:|")
    for name, time in rows.items():
        total = (time + plain) / plain if name.startswith("C3PO") else time / plain
        print(f"| {name} | {time * 1e3:.1f} | {full / time:.1f} | {total:.2f} |")


if __name__ == "__main__":
    main()
