"""Controls without routing for `experiment=routing/methods` on texts: how far smoothing the base model's distribution goes.

    python -m moe_lab experiment=routing/methods
    python -m benchmarks.smoothing --output-dir outputs

Each next-token distribution of a trained model becomes `(1 - w) softmax(s logits) + w q`, where q are the token frequencies
of the held-out texts or the uniform distribution. s and w are chosen on the held-out examples of the experiment's studies;
the bits per byte are of its test texts, and are compared with those of its RoE runs, model by model.

T = tokens of all texts, V = vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
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

TASK, METRIC = "toy_text", "bits_per_byte,none"
SCALES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)
WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3)


class Read(NamedTuple):
    """Texts as a model has read them."""

    logits_TV: Tensor
    """float64"""
    targets_T: Tensor
    bytes: int


def read(model: torch.nn.Module, tokenizer: AutoTokenizer, texts: list[str]) -> Read:
    logits, targets = [], []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        with torch.inference_mode():
            rows = model(torch.tensor([[tokenizer.eos_token_id, *ids[:-1]]])).logits[0]
        logits.append(rows.double())
        targets.append(torch.tensor(ids))
    return Read(torch.cat(logits), torch.cat(targets), sum(len(text.encode()) for text in texts))


def bits_per_byte(texts: Read, scale: float, weight: float, other_V: Tensor) -> float:
    own_T = (scale * texts.logits_TV).softmax(-1).gather(1, texts.targets_T[:, None])[:, 0]
    mixed_T = (1 - weight) * own_T + weight * other_V[texts.targets_T]
    return float(-mixed_T.log2().sum() / texts.bytes)


def controls(
    folder: Path, held_out: list[str], pool: list[str], test: list[str]
) -> dict[str, float]:
    """Bits per byte of the test texts of the base model and of each control, tuned on the held-out texts."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    size = model.config.vocab_size
    counts_V = torch.ones(size, dtype=torch.float64)
    for text in pool:
        counts_V += torch.bincount(torch.tensor(tokenizer.encode(text)), minlength=size)
    frequencies_V, uniform_V = counts_V / counts_V.sum(), torch.full_like(counts_V, 1 / size)
    tuned_on, tested = read(model, tokenizer, held_out), read(model, tokenizer, test)
    found = {"base": bits_per_byte(tested, 1.0, 0.0, uniform_V)}
    for name, scales, weights, other_V in (
        ("one softmax temperature (calibration)", SCALES, (0.0,), uniform_V),
        ("mixed with the uniform distribution", (1.0,), WEIGHTS, uniform_V),
        ("mixed with token frequencies", (1.0,), WEIGHTS, frequencies_V),
        ("both: temperature and token frequencies", SCALES, WEIGHTS, frequencies_V),
    ):
        _, scale, weight = min(
            (bits_per_byte(tuned_on, s, w, other_V), s, w) for s in scales for w in weights
        )
        found[name] = bits_per_byte(tested, scale, weight, other_V)
    return found


def stored_roe(output: Path) -> dict[int, dict[str, float]]:
    """Bits per byte of the RoE runs by n and by the folder of the model."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for file in output.glob(f"runs/toy-repeated-roe-{TASK}-*/results.json"):
        result = json.loads(file.read_text())
        folder = Path(result["moe_lab"]["model"]["path"]).parent.name
        found[result["moe_lab"]["roe"]["n"]][folder] = result["results"][TASK][METRIC]
    return found


def interval(values: list[float]) -> str:
    """The mean with its 95% interval over models."""
    half = (
        student.ppf(0.975, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    )
    mean = float(np.mean(values))
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    output = parser.parse_args().output_dir
    task = load_tasks(to_config(compose_cell(["model=tiny", f"task={TASK}"], [])))["tasks"][TASK]
    pool, test = (
        [task.doc_to_target(one) for one in docs]
        for docs in (task.validation_docs(), task.test_docs())
    )
    study = json.loads(next(output.glob(f"studies/toy-repeated-{TASK}-*/study.json")).read_text())
    held_out = [pool[number] for number in study["samples"][TASK]]
    folders = sorted(output.glob("models/toy-repeated-pretrain-*"))
    by_model = {folder.name: controls(folder / "model", held_out, pool, test) for folder in folders}
    roe = stored_roe(output)
    columns = [f"RoE n={n} minus it" for n in sorted(roe)]
    print(f"| base model | minus base | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for name in next(iter(by_model.values())):
        own = [interval([found[name] - found["base"] for found in by_model.values()])]
        own += [
            interval([roe[n][one] - found[name] for one, found in by_model.items()])
            for n in sorted(roe)
        ]
        print(f"| {name} | {' | '.join(own)} |")


if __name__ == "__main__":
    main()
