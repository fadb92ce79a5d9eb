"""Tokens per second of method=pretrain against transformers' Trainer with the same model, and of
its routers.

    python -m benchmarks.pretrain

A few optimizer steps of the default design on the toy corpus. Plain: transformers' Trainer with its
own auxiliary loss and defaults. All trainings take turns in one process; loading and packing are
not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from benchmarks.measure import side_by_side
from moe_lab.config.schema import Config
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of
from moe_lab.methods.pretrain.design import architecture
from moe_lab.methods.pretrain.packing import pack
from moe_lab.methods.pretrain.training import PretrainingInputs, train

HELD_OUT = 8


def plain(training: PretrainingInputs) -> None:
    """transformers' Trainer on the same rows."""
    design = training.design
    config = architecture(design, training.tokenizer)
    config.output_router_logits = True
    rows = [{"input_ids": row, "labels": row} for row in torch.from_numpy(training.rows).long()]
    settings = TrainingArguments(
        output_dir=str(training.folder),
        per_device_train_batch_size=design.batch_size,
        max_steps=design.steps,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=20,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    Trainer(model=model, args=settings, train_dataset=rows).train()


def training_of(folder: Path, steps: int, **keys: Any) -> PretrainingInputs:
    """The training of a design on the toy corpus, without checkpoints on the way."""
    method = PretrainConfig(
        name="pretrain", steps=steps, save_steps=steps + 1, validation_rows=HELD_OUT, **keys
    )
    config = Config(method=method, device="cpu")
    corpus = read_corpus(config, "toy", None)
    tokenizer = tokenizer_of(config, corpus)
    rows, held_out = pack(
        corpus, tokenizer, rows=method.rows, held_out=HELD_OUT, length=method.sequence_length
    )
    return PretrainingInputs(
        config=config,
        folder=folder,
        tokenizer=tokenizer,
        rows=rows,
        held_out=held_out,
        dtype="float32",
    )


def timed(run: Any, training: PretrainingInputs) -> None:
    """Run in a folder that is thrown away, in silence."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run(training.__class__(**(vars(training) | {"folder": Path(folder)})))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    made = {
        router: training_of(Path(), options.steps, router=router)
        for router in ("token", "word", "sentence", "expert")
    }
    runs = {"transformers' Trainer": partial(timed, plain, made["token"])}
    runs |= {f"router={name}": partial(timed, train, training) for name, training in made.items()}
    seconds = side_by_side(runs, options.rounds)
    tokens = made["token"].design.rows * made["token"].design.sequence_length
    token_seconds = seconds["router=token"]
    print("training                tokens/s   times router=token")
    for name, spent in seconds.items():
        print(f"{name:22} {tokens / spent:9,.0f} {token_seconds / spent:20.2f}")


if __name__ == "__main__":
    main()
