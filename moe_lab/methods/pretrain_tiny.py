"""`method=pretrain-tiny`: the training recipe of the embedded tiny model, for any architecture.

The embedded model is the result of `method=pretrain-tiny model=tiny`. The architecture and the
tokenizer are those of `model=`; its weights are not read. The corpus is the toy world's.
`method=pretrain` compares designs.
"""

import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import NonNegativeFloat, NonNegativeInt, PositiveInt
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods.method import Method, ModelMaker
from moe_lab.methods.trained import Trained, save_model
from moe_lab.results.versions import versions
from moe_lab.tasks.toy.world import WORLD_VERSION

NOT_ARCHITECTURE = (
    "transformers_version",
    "architectures",
    "dtype",
    "output_router_logits",
    "router_aux_loss_coef",
    "use_cache",
)
"""Entries of a model's config that do not change the training, or that the recipe sets."""


class ToyRows:
    """Rows of `length` tokens of the toy corpus: documents joined by the end token,
    the last one cut off.

    Row i depends only on (seed, i), so a resumed training sees the same rows as an uninterrupted
    one.
    """

    def __init__(self, tokenizer: Any, *, seed: int, rows: int, length: int):
        self.tokenizer = tokenizer
        self.seed = seed
        self.rows = rows
        self.length = length

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        from moe_lab.tasks.toy.corpus import documents

        ids: list[int] = []
        group = index * 1000
        while len(ids) < self.length:
            for text in documents(self.seed, group, 8):
                ids += [*self.tokenizer(text).input_ids, self.tokenizer.eos_token_id]
            group += 1
        row = torch.tensor(ids[: self.length])
        return {"input_ids": row, "labels": row}


class PretrainTiny(ModelMaker):
    """Training from scratch; writes `outputs/models/<model>-pretrain-tiny-<id8>/`."""

    numerics = 1
    random = True

    @dataclass(kw_only=True)
    class Config(Method.Config):
        name: str = "pretrain-tiny"
        steps: PositiveInt = 4200
        batch_size: PositiveInt = 8
        sequence_length: PositiveInt = 256
        learning_rate: NonNegativeFloat = 2e-3
        warmup_steps: NonNegativeInt = 200
        decay_steps: NonNegativeInt = 6000
        cooldown_steps: NonNegativeInt = 600
        weight_decay: NonNegativeFloat = 0.05
        router_aux_loss_coef: NonNegativeFloat = 0.01
        save_steps: PositiveInt = 300

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.decay_steps < self.steps:
                raise ConfigError(f"method.decay_steps must be at least method.steps={self.steps}.")
            if self.steps == 1 and self.warmup_steps:
                raise ConfigError(
                    f"method.warmup_steps={self.warmup_steps}: the warm-up begins with the "
                    "learning rate 0, so one step would train nothing. Use more method.steps, or "
                    "method.warmup_steps=0."
                )

        def rate(self, step: int) -> float:
            """The learning rate at an optimizer step, as a share of its highest value.

            A linear warm-up, a cosine to zero at `decay_steps`, and a linear decay to zero over the
            last `cooldown_steps` before `steps`, where the training ends.
            """
            if step < self.warmup_steps:
                return step / self.warmup_steps
            progress = (step - self.warmup_steps) / max(1, self.decay_steps - self.warmup_steps)
            cooldown = min(1.0, (self.steps - step) / max(1, self.cooldown_steps))
            cosine = 0.5 * (1 + math.cos(math.pi * progress))
            return max(0.0, cosine) * max(0.0, cooldown)

    def train(self, config: RunConfig) -> Path:
        """Train or continue, unless complete.

        Returns the output folder, whose `model/` can be loaded.

        Raises ModelError if `model=` has no architecture or tokenizer, RunHeldError if another
        process trains it, ResultsError if the folder cannot be written.
        """
        from moe_lab.models.source import load_config
        from moe_lab.models.text_part import has_towers
        from moe_lab.models.tokenizer import load_tokenizer

        recipe = asdict(self.config)
        recipe.pop("save_steps")
        architecture = load_config(config.model, offline=config.offline)
        if has_towers(architecture):
            raise ModelError(
                f"method=pretrain-tiny trains a model of text alone, and {config.model.name} reads "
                "images, too. Use model=tiny, or an architecture of text."
            )
        shape = architecture.to_diff_dict()
        tokenizer = load_tokenizer(config.model, offline=config.offline)
        identity = {  # all that determines the weights
            "recipe": recipe,
            "numerics": self.version,
            "world_version": WORLD_VERSION,
            "seed": config.seed,
            "architecture": {k: v for k, v in shape.items() if k not in NOT_ARCHITECTURE},
            "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        }
        trained = Trained.of(config, identity, "model")
        trained.load_or_make(
            lambda: identity | self._train(config, trained.folder, architecture, tokenizer)
        )
        return trained.folder

    def _train(
        self, config: RunConfig, folder: Path, architecture: Any, tokenizer: Any
    ) -> dict[str, Any]:
        """Write the model. Returns the rest of training.json."""
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig, set_seed

        from moe_lab.methods.trainer import fit

        recipe = self.config
        architecture.output_router_logits = True
        architecture.router_aux_loss_coef = recipe.router_aux_loss_coef
        set_seed(config.seed)
        model = AutoModelForCausalLM.from_config(
            architecture,
            dtype=torch.float32,
            attn_implementation=config.model.attn_implementation,
        )
        model.set_experts_implementation(config.model.experts_implementation or "grouped_mm")
        rows = ToyRows(
            tokenizer,
            seed=config.seed,
            rows=recipe.steps * recipe.batch_size,
            length=recipe.sequence_length,
        )
        trainer = fit(
            folder,
            config,
            model,
            rows,
            steps=recipe.steps,
            log_steps=20,
            options={"schedule": recipe.rate},
            per_device_train_batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            optim="adamw_torch",
            adam_beta2=0.95,
            train_sampling_strategy="sequential",
            save_steps=recipe.save_steps,
        )
        model.config.output_router_logits = False
        model.config.use_cache = True  # the Trainer turns it off
        model.generation_config = GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )
        save_model(model, tokenizer, folder / "model", "bfloat16")
        return {"metrics": trainer.state.log_history[-1], "versions": versions()}
