"""Controls without routing for `experiment=routing/methods` on texts: how far smoothing the base
model's distribution goes.

    python -m moe_lab experiment=routing/methods
    python -m benchmarks.smoothing --output-dir outputs

Each next-token distribution of a trained model becomes `(1 - w) softmax(s logits) + w q`, where q
are the token frequencies of the held-out texts or the uniform distribution. s and w are chosen on
the held-out examples of the experiment's studies; the bits per byte are of its test texts, and are
compared with those of its RoE runs, model by model.

T = tokens of all texts, V = vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.config.compose import compose_cell
from moe_lab.runs.config import to_config
from moe_lab.tasks.loading import load_tasks

TASK = "toy_text"
METRIC = "bits_per_byte,none"
SCALES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)
WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3)


class Read(NamedTuple):
    """Texts as a model has read them."""

    logits_TV: Tensor
    """float64"""
    targets_T: Tensor
    bytes: int


def read(model: torch.nn.Module, tokenizer: AutoTokenizer, texts: list[str]) -> Read:
    logits = []
    targets = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        with torch.inference_mode():
            rows = model(torch.tensor([[tokenizer.eos_token_id, *ids[:-1]]])).logits[0]
        logits.append(rows.double())
        targets.append(torch.tensor(ids))
    return Read(torch.cat(logits), torch.cat(targets), sum(len(text.encode()) for text in texts))


def bits_per_byte(texts: Read, scale: float, weight: float, other_V: Tensor) -> float:
    """The texts' score with each distribution scaled, and mixed with another one.

    Args:
        weight: that of the other distribution.
    """
    probs_TV = (scale * texts.logits_TV).softmax(-1)
    probs_T = probs_TV.gather(1, texts.targets_T[:, None])[:, 0]
    mixed_T = (1 - weight) * probs_T + weight * other_V[texts.targets_T]
    return float(-mixed_T.log2().sum() / texts.bytes)


class Control(NamedTuple):
    """A way of smoothing, and the values that are tried on held-out texts."""

    name: str
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    other_V: Tensor

    def tuned(self, held_out: Read) -> tuple[float, float]:
        """(scale, weight) with the fewest bits per byte of the held-out texts."""
        best = (math.inf, 1.0, 0.0)
        for scale, weight in product(self.scales, self.weights):
            bits = bits_per_byte(held_out, scale, weight, self.other_V)
            best = min(best, (bits, scale, weight))
        _, scale, weight = best
        return scale, weight


def controls(
    folder: Path, held_out: list[str], pool: list[str], test: list[str]
) -> dict[str, float]:
    """Bits per byte of the test texts of the base model and of each control, tuned on the held-out
    texts."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    V = model.config.vocab_size
    counts_V = torch.ones(V, dtype=torch.float64)
    for text in pool:
        counts_V += torch.bincount(torch.tensor(tokenizer.encode(text)), minlength=V)
    frequencies_V = counts_V / counts_V.sum()
    uniform_V = torch.full_like(counts_V, 1 / V)
    held_out_texts = read(model, tokenizer, held_out)
    test_texts = read(model, tokenizer, test)

    bits = {"base": bits_per_byte(test_texts, 1.0, 0.0, uniform_V)}
    for control in (
        Control("one softmax temperature (calibration)", SCALES, (0.0,), uniform_V),
        Control("mixed with the uniform distribution", (1.0,), WEIGHTS, uniform_V),
        Control("mixed with token frequencies", (1.0,), WEIGHTS, frequencies_V),
        Control("both: temperature and token frequencies", SCALES, WEIGHTS, frequencies_V),
    ):
        scale, weight = control.tuned(held_out_texts)
        bits[control.name] = bits_per_byte(test_texts, scale, weight, control.other_V)
    return bits


def stored_roe(output: Path) -> dict[int, dict[str, float]]:
    """Bits per byte of the RoE runs by n and by the folder of the model."""
    bits: dict[int, dict[str, float]] = defaultdict(dict)
    for file in output.glob(f"runs/toy-repeated-roe-{TASK}-*/results.json"):
        result = json.loads(file.read_text())
        n = result["moe_lab"]["roe"]["n"]
        folder = Path(result["moe_lab"]["model"]["path"]).parent.name
        bits[n][folder] = result["results"][TASK][METRIC]
    return bits


def interval(values: list[float]) -> str:
    """The mean with its 95% interval over models."""
    count = len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    half = student.ppf(0.975, count - 1) * error
    mean = float(np.mean(values))
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    output = parser.parse_args().output_dir
    task = load_tasks(to_config(compose_cell(["model=tiny", f"task={TASK}"], [])))["tasks"][TASK]
    pool = [task.doc_to_target(document) for document in task.validation_docs()]
    test = [task.doc_to_target(document) for document in task.test_docs()]
    study = json.loads(next(output.glob(f"studies/toy-repeated-{TASK}-*/study.json")).read_text())
    held_out = [pool[number] for number in study["samples"][TASK]]
    bits_of: dict[str, dict[str, float]] = {}
    for folder in sorted(output.glob("models/toy-repeated-pretrain-*")):
        bits_of[folder.name] = controls(folder / "model", held_out, pool, test)
    roe_bits = stored_roe(output)
    numbers = sorted(roe_bits)

    titles = [f"RoE n={n} minus it" for n in numbers]
    print(f"| base model | minus base | {' | '.join(titles)} |\n|---|---|{'---|' * len(titles)}")
    for name in next(iter(bits_of.values())):
        columns = [interval([bits[name] - bits["base"] for bits in bits_of.values()])]
        for n in numbers:
            differences = [roe_bits[n][model] - bits[name] for model, bits in bits_of.items()]
            columns.append(interval(differences))
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
