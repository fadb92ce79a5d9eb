"""What a step of decoding asks of the host: operations, and time where arithmetic costs next to
nothing.

    python -m benchmarks.step

OLMoE's depth (16 layers, 64 experts, top-8, `grouped_mm`) with widths of 64, batches of 1 and 8
sequences, n = 1, 8, 32 at temperature 0.3 in all layers but the first two and the last two (L=2),
next to transformers' greedy decoding. On a GPU decoding is bound by launches, and an operation of
this table is at least one launch.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GenerationConfig, OlmoeConfig, OlmoeForCausalLM

from benchmarks.measure import side_by_side
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.pass_size import pass_budget
from moe_lab.engine.sampling import Decoding, GenerationState, Sampler
from moe_lab.routing import GumbelTopK

SKIP = 2
PROMPT = 20
FEW = 12
MANY = 44
"""Tokens of a prompt. A step is the difference of two generations, of few and of many new
tokens."""

Run = Callable[[int], object]
"""Generates this number of new tokens."""


class Operations(TorchDispatchMode):
    """Counts the operations inside the context that compute something. Views, and casts to the same
    dtype, do not."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        known_tensors = {
            id_of(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)
        }
        output = function(*args, **(kwargs or {}))
        made = any(
            id_of(tensor) not in known_tensors
            for tensor in tree_leaves(output)
            if isinstance(tensor, Tensor)
        )
        if made or function._schema.is_mutable:
            self.counts[function.name()] += 1
        return output


def id_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def make_model(layers: int) -> OlmoeForCausalLM:
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=64,
        num_experts_per_tok=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = OlmoeForCausalLM(config).eval()
    model.set_experts_implementation("grouped_mm")
    return model


def prompts(batch: int) -> list[list[int]]:
    return torch.randint(
        1, 512, (batch, PROMPT), generator=torch.Generator().manual_seed(1)
    ).tolist()


def by_transformers(model: Any, batch: int) -> Run:
    ids = torch.tensor(prompts(batch))
    mask = torch.ones_like(ids)
    return lambda new: model.generate(
        ids, attention_mask=mask, max_new_tokens=new, do_sample=False, eos_token_id=None
    )


def by_engine(model: Any, batch: int, n: int) -> Run:
    noisy = model.config.num_hidden_layers - 2 * SKIP
    policy = GumbelTopK([0.0] * SKIP + [0.3] * noisy + [0.0] * SKIP, seed=0)
    ensemble = Ensemble()
    if n > 1:
        ensemble = Ensemble(n, policy, first_noisy=SKIP)
    engine = KVEngine(EnsembleForward(model, ensemble), pass_budget(model))

    def run(new: int) -> None:
        states = [
            GenerationState(i, prompt, noise_key=i) for i, prompt in enumerate(prompts(batch))
        ]
        sampler = Sampler(model, GenerationConfig(), 0)
        engine.generate(states, Decoding(sampler, lambda state: False, new), lambda state: None)

    return run


def operations_of_a_step(run: Run) -> float:
    counts = []
    for new in (FEW, MANY):
        with Operations() as counted:
            run(new)
        counts.append(counted.counts.total())
    return (counts[1] - counts[0]) / (MANY - FEW)


def compare(
    layers: int, rounds: int, batches: tuple[int, ...] = (1, 8), rows: tuple[int, ...] = (1, 8, 32)
) -> None:
    model = make_model(layers)
    print(
        "| batch | | operations of a step | ms | times transformers' greedy "
        "|\n|---:|---|---:|---:|---:|"
    )
    for batch in batches:
        runs = {"transformers' greedy": by_transformers(model, batch)}
        runs |= {f"n={n}": by_engine(model, batch, n) for n in rows}
        timed = {
            (name, new): (lambda run=run, new=new: run(new))
            for name, run in runs.items()
            for new in (FEW, MANY)
        }
        seconds: Any = side_by_side(timed, rounds)  # type: ignore[arg-type]
        steps = {name: (seconds[name, MANY] - seconds[name, FEW]) / (MANY - FEW) for name in runs}
        for name, run in runs.items():
            ratio = steps[name] / steps["transformers' greedy"]
            operations = operations_of_a_step(run)
            print(
                f"| {batch} | {name} | {operations:,.0f} | {steps[name] * 1e3:.2f} | {ratio:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    compare(options.layers, options.rounds)


if __name__ == "__main__":
    main()
