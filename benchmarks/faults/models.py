"""Hostile model folders: each is refused with one message that names it, or evaluated with the numbers of a whole one."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.faults.child import Ended, run
from benchmarks.faults.hostile_models import REFUSED, SAME, Hostility, hostilities
from benchmarks.faults.kinds import clear, scratch
from benchmarks.faults.model_files import CONFIG, GENERATION, MARK, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG

FAMILIES = ("olmoe", "mixtral", "qwen3_moe")
NAME = "hostile-model"
"""The folder's name, which a message has to contain."""
PATIENCE = 60.0
MOST_LINES = 4
"""Lines of a message."""


class Models:
    """Attempt n does one hostility to a small model of one family, and evaluates it."""

    name = "models"

    def __init__(self, work: Path, seed: int, count: int):
        self.work = work
        self.hostilities = hostilities()
        self.attempts = min(count, len(self.hostilities))
        self.step = len(self.hostilities) / max(1, self.attempts)
        self.offset = seed
        self.endings: Counter[str] = Counter()
        self.whole = {family: make_model(work / f"whole-{family}", family) for family in FAMILIES}
        self.expected: dict[tuple[str, tuple[str, ...]], Any] = {}

    def attempt(self, number: int) -> list[str]:
        """What is wrong with the ending of attempt `number`."""
        hostility = self.hostilities[int(number * self.step)]
        family = FAMILIES[(number + self.offset) % len(FAMILIES)]
        output = scratch(self.work)
        folder = output.parent / NAME
        shutil.copytree(self.whole[family], folder)
        hostility.do(folder)
        ended = self._run(folder, hostility, output)
        ran = [path for path in (output.parent / MARK, Path(MARK)) if path.exists()]
        problem = "code of the model ran" if ran else self._problem(ended, hostility, family, output)
        for path in ran:
            path.unlink()
        self.endings["evaluated" if ended.code == 0 else "refused"] += 1
        clear(output)
        return [f"{family}, {hostility.name}: {problem}"] if problem else []

    def _run(self, folder: Path, hostility: Hostility, output: Path) -> Ended:
        return run(
            [*_argv(hostility.argv), f"model.path={folder}", f"output_dir={output}"],
            output.with_suffix(".log"),
            before=lambda: os.chdir(folder.parent),
            patience=PATIENCE,
        )

    def _problem(self, ended: Ended, hostility: Hostility, family: str, output: Path) -> str | None:
        if ended.traceback or ended.code not in (0, 1, 2):
            return f"ended with {ended.code} after {ended.seconds:.0f} s: {ended.last_line}"
        if ended.code:
            return _message_problem(ended.output) or (
                f"{SAME} expected: {ended.last_line}" if hostility.ends == SAME else None
            )
        if hostility.ends == REFUSED:
            return f"evaluated: {ended.last_line}"
        found = _scores(output)
        if hostility.ends == SAME and found != self._whole_scores(hostility, family):
            return f"other numbers than {SAME}: {found}"
        return None if found else "no numbers"

    def _whole_scores(self, hostility: Hostility, family: str) -> Any:
        key = (family, hostility.argv)
        if key not in self.expected:
            output = scratch(self.work)
            self._run(self.whole[family], hostility, output)
            self.expected[key] = _scores(output)
            clear(output)
        return self.expected[key]

    def told(self) -> str:
        return (
            f"{self.attempts} model folders ({', '.join(f'{n} {what}' for what, n in self.endings.items())})"
        )


def make_model(folder: Path, family: str) -> Path:
    """A small model with the embedded model's tokenizer, the same whenever it is made; larger than 256 KiB."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from moe_lab.models.source import TINY

    vocabulary = json.loads((TINY / CONFIG).read_text())["vocab_size"]
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {"num_local_experts" if family == "mixtral" else "num_experts": 8, "num_experts_per_tok": 2}
    heads = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512}
    tokens = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = CONFIG_MAPPING[family](**sizes, **experts, **heads, **tokens, tie_word_embeddings=False)
    if family == "qwen3_moe":
        config.moe_intermediate_size = 16
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for file in (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE):
        shutil.copy(TINY / file, folder)
    (folder / GENERATION).write_text(json.dumps({"eos_token_id": 0, "pad_token_id": 0}))
    return folder


def _argv(extra: tuple[str, ...]) -> list[str]:
    task = [] if any(each.startswith("task=") for each in extra) else ["task=toy_choice"]
    return ["method=base", *task, *extra, "limit=2", "device=cpu", "offline=true"]


def _message_problem(output: str) -> str | None:
    """What is wrong with the message of a refusal."""
    before, found, message = output.rpartition("Error: ")
    lines = message.strip().splitlines()
    if not found or "Error: " in before:
        return f"not one message: {output.strip()[-300:]}"
    if not any(name in message for name in (NAME, "gen_kwargs", "chat_template")):  # the folder, or the key
        return f"a message without the folder's name: {message.strip()[:300]}"
    if len(lines) > MOST_LINES or len(message) > 1500 or "\x1b" in message:
        return f"a message of {len(lines)} lines and {len(message)} characters: {message.strip()[:300]!r}"
    return None


def _scores(output: Path) -> Any:
    found = [json.loads(path.read_text())["results"] for path in sorted(output.glob("runs/*/results.json"))]
    numbers = [value for tasks in found for task in tasks.values() for value in task.values()]
    return found if any(isinstance(value, float) for value in numbers) else None
