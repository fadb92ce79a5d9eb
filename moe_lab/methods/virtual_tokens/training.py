"""Soft prompts and prefixes: peft's models, trained on right answers with transformers' Trainer.

outputs/models/<model>-<method>-<id8>/
  adapter/         peft's format
  checkpoints/     checkpoints of an unfinished training
  log.jsonl        loss and learning rate of every step
  training.json    all that determines the adapter, and the course of its training; written last
"""

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from moe_lab.config.schema import Config
from moe_lab.engine.footprint import meta_model
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import first_line
from moe_lab.methods.base import base_lm
from moe_lab.methods.references.documents import ReferenceDocuments
from moe_lab.methods.references.questions import reference_questions
from moe_lab.methods.tokenized import Pad, Row, Rows
from moe_lab.methods.trained import save_model
from moe_lab.methods.trainer import fit
from moe_lab.models.facts import LoadedModel
from moe_lab.models.output_flags import set_use_cache
from moe_lab.models.text_part import forget_images
from moe_lab.results.versions import versions
from moe_lab.routing.hook import opened


@contextmanager
def with_adapter(model: Any, kind: str, virtual_tokens: int, seed: int = 0) -> Iterator[Any]:
    """A PeftModel of the frozen model with an adapter drawn from the seed.

    On exit the model is restored.

    A soft prompt starts with the embeddings of random tokens, a prefix with standard normal
    numbers.
    """
    from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model

    settings: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": virtual_tokens}
    forget_images(model)
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    cached = getattr(model.config, "use_cache", None)  # the Trainer turns it off
    try:
        with warnings.catch_warnings():
            # peft calls deprecated functions of transformers
            warnings.simplefilter("ignore", FutureWarning)
            set_seed(seed)
            if kind == "soft-prompt":
                adapter: Any = PromptTuningConfig(prompt_tuning_init="SAMPLE_VOCAB", **settings)
            else:
                adapter = PrefixTuningConfig(**settings)
            yield get_peft_model(model, adapter).eval()
    finally:
        set_use_cache(model.config, cached)
        model.eval()
        for parameter, flag in flags:
            parameter.requires_grad = flag


def train_adapter(
    folder: Path, config: Config, documents: ReferenceDocuments, model: LoadedModel, wrapped: Any
) -> dict[str, Any]:
    """Train the adapter of a PeftModel on the right answers, and write it.

    Returns the rest of training.json.
    """
    method = config.method
    lm = base_lm(model, shortened(config, model))
    rows = []
    for question in reference_questions(config, documents):
        prompt_ids, answer_ids = lm.encode_pair(question.prompt, question.right_answer)
        rows.append(Row.of(prompt_ids, answer_ids))
    per_epoch = math.ceil(len(rows) / method.batch_size)
    steps = method.epochs * per_epoch
    warmup = method.steps_of_warmup(0.0, steps)
    start = time.perf_counter()
    trainer = fit(
        folder,
        config,
        wrapped,
        Rows(rows),
        steps=steps,
        log_steps=1,
        options={"schedule": partial(linear, steps, warmup), "data_collator": Pad(0)},
        per_device_train_batch_size=method.batch_size,
        learning_rate=method.learning_rate,
        warmup_steps=warmup,
        **method.trainer_defaults,
    )
    save_model(wrapped, None, folder / "adapter", model.facts.dtype)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {
        "questions": len(rows),
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in wrapped.prompt_encoder.parameters()),
        "loss_of_last_epoch": sum(losses[-per_epoch:]) / per_epoch,
        "last_session_seconds": time.perf_counter() - start,
        "reference": {
            "label": documents.label,
            "dropped": documents.dropped,
            "sources": documents.sources,
        },
        "all_versions": versions(),
    }


def linear(steps: int, warmup: int, step: int) -> float:
    """The learning rate as a share of its highest value: linear warm-up, then linearly to 0."""
    if step < warmup:
        return step / warmup
    return 1 - (step - warmup) / max(1, steps - warmup)


def shortened(config: Config, model: LoadedModel) -> Config:
    """The configuration with a maximum length that leaves room for the virtual tokens."""
    room = config.max_length or model.facts.max_length
    return replace(config, max_length=room - config.method.virtual_tokens)


class VirtualTokensLM(EngineLM):
    """Scores multiple-choice questions after virtual tokens: lm-eval's own code runs the PeftModel.

    `cost` does not count the virtual tokens.
    """

    def __init__(self, wrapped: Any, tokenizer: Any, **options: Any):
        super().__init__(wrapped.get_base_model(), tokenizer, **options)
        self._model = wrapped
        self.engine = None

    @contextmanager
    def running(self) -> Iterator[None]:
        inner = self.model.get_base_model()
        forget_images(inner)
        with opened(inner, self.label, alone=True):
            yield


def refusal(config: Any, kind: str) -> str | None:
    """The first line of the error with which peft or the model refuses virtual tokens, or None.

    Needs no weights.
    """
    try:
        with torch.device("meta"):
            model = meta_model(config, torch.bfloat16)
            with with_adapter(model, kind, 1) as wrapped:
                wrapped(input_ids=torch.zeros(1, 1, dtype=torch.long))
    except NotImplementedError:
        pass  # an operation of the model that needs values
    except Exception as error:  # each architecture has other errors
        return first_line(error)
    return None
