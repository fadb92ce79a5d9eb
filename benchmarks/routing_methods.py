"""What each way of routing costs: the same requests, in turns in one process, in times the base
model's.

    python -m benchmarks.routing_methods

Generation answers `toy_math` problems, scoring compares the choices of `toy_choice` questions;
weights and tokens of the benchmark's model say nothing about quality. Temperature 0.3 in all layers
but the first two and the last two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

import moe_lab
from benchmarks.bench_model import make_model
from benchmarks.measure import side_by_side
from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.methods import get_method
from moe_lab.methods.method import Context
from moe_lab.models.experts import NAME
from moe_lab.models.facts import LoadedModel, ModelFacts, routing_facts
from moe_lab.tasks.toy.questions import questions
from moe_lab.tasks.toy.word_problems import word_problems

TOKENIZER = Path(moe_lab.__file__).parent / "models" / "tiny"
ROE = {"temperature": 0.3, "skip_layers": 2}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("base", {}),
    "base, 16 sequences together": ("base", {}),
    "top-p, p=0.1": ("top-p", {"p": 0.1}),
    "top-k, twice the experts": ("top-k", {"k": 8}),
    "SCMoE": ("scmoe", {}),
    "RoE, n=2": ("roe", {"n": 2, **ROE}),
    "RoE, n=8": ("roe", {"n": 8, **ROE}),
    "RoE, n=32": ("roe", {"n": 32, **ROE}),
}


def loaded() -> LoadedModel:
    """The benchmark's model with the embedded model's tokenizer, whose ids it has."""
    model = make_model()
    model.set_experts_implementation(NAME)
    facts = ModelFacts(
        name="bench",
        path=None,
        revision=None,
        commit=None,
        dtype="float32",
        **routing_facts(model.config),
    )
    return LoadedModel(
        model, AutoTokenizer.from_pretrained(TOKENIZER), facts, torch.device("cpu"), 0.0
    )


def opened(name: str, model: LoadedModel, stack: ExitStack) -> EngineLM:
    """The LM of a way of routing, until the stack ends."""
    method_name, keys = WAYS[name]
    method_class = get_method(method_name)
    batch_size: int | str = 16 if "16 sequences" in name else "auto"
    config = Config(method=method_class.Config(**keys), batch_size=batch_size)
    method = method_class(config.method)
    lm: EngineLM = stack.enter_context(method.open(model, Context(config=config)))
    lm.progress = False
    return lm


def generation(problems: int, new: int) -> tuple[str, list[Request]]:
    """(kind of request, requests) that generate `new` tokens for each problem."""
    options = {"until": [], "max_gen_toks": new}
    requests = []
    for document in word_problems("test", problems):
        requests.append(Request((f"Question: {document['question']}\nAnswer:", options)))
    return "generate_until", requests


def scoring(count: int) -> tuple[str, list[Request]]:
    """(kind of request, requests) that score the choices of each question."""
    documents: list[Any] = questions("test", count)
    requests = []
    for document in documents:
        prompt = f"Question: {document['question']}\nAnswer:"
        for choice in document["choices"]:
            requests.append(Request((prompt, f" {choice}")))
    return "loglikelihood", requests


def answering(
    name: str, model: LoadedModel, kind: str, requests: list[Request]
) -> Callable[[], None]:
    """A function that answers all requests.

    It opens the method each time: several cannot be installed on one model at once.
    """

    def run() -> None:
        with ExitStack() as stack:
            opened(name, model, stack).answer(kind, requests, lambda number, answer: None)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--new", type=int, default=16, help="tokens to generate for each")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = loaded()
    seconds_of_works = []
    for work in (generation(options.documents, options.new), scoring(options.documents)):
        ways = {name: answering(name, model, *work) for name in WAYS}
        seconds_of_works.append(side_by_side(ways, options.rounds))
    print("| routing | generation, s | times base | scoring, s | times base |")
    print("|---|---:|---:|---:|---:|")
    for name in WAYS:
        columns = []
        for seconds in seconds_of_works:
            columns.append(f"{seconds[name]:.2f} | {seconds[name] / seconds['base']:.2f}")
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
