"""`method=icl`: in-context learning with the nearest references as demonstrations, a baseline of
C3PO's Table 1.

References and distances are those of C3PO. The model is the base model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import PositiveInt, UserPath
from moe_lab.errors import ConfigError
from moe_lab.methods.base import base_lm
from moe_lab.methods.method import Context, Counters, Method, SessionInfo
from moe_lab.methods.references.documents import check_choice_questions
from moe_lab.methods.references.reference_method import ReferenceMethod
from moe_lab.tasks.lm_eval_versions.documents import has_prompt_per_choice
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.workload import Workload

if TYPE_CHECKING:
    from moe_lab.methods.icl_lm import DemonstrationLM
    from moe_lab.models.facts import LoadedModel, ModelFacts


class ICL(ReferenceMethod):
    """The k nearest references before each question, with their right answers."""

    answer: ClassVar[str | None] = "letters"

    @dataclass(kw_only=True)
    class Config(Method.Config):
        name: str = "icl"
        k: PositiveInt = 3
        reference: str | list[str] | None = None
        reference_size: PositiveInt | None = None
        embeddings: UserPath | None = None
        most_similar: float = 0.95
        epsilon: ClassVar[None] = None
        tokens: ClassVar[str] = "last1"
        """Keys of C3PO that determine the reference set, at C3PO's defaults."""

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The reference documents.

        Raises ConfigError or TaskError for missing ones and for prompts in a chat.
        """
        from moe_lab.methods.references.reference_set import references_identity

        if config.apply_chat_template:
            raise ConfigError(
                "method=icl puts demonstrations before a plain prompt, not into a chat: leave "
                "apply_chat_template out."
            )
        for name, task in load_tasks(config)["tasks"].items():
            if has_prompt_per_choice(task):
                raise ConfigError(
                    f"method=icl needs one prompt per question of {name}: task.answer=letters."
                )
        check_choice_questions(config, self.config)
        return references_identity(config, self.config, facts)

    def forward_tokens(self, workload: Workload, config: RunConfig, facts: ModelFacts) -> float:
        """An estimate of the tokens that the model reads: demonstrations are as long as the
        question, as far as the model's input has room."""
        most = config.max_length or facts.max_length
        tokens = 0.0
        for weight, asked in workload.asked:
            for context, continuations in asked.scored.items():
                prompt = min((1 + self.config.k) * len(context), most)
                answers = sum(len(ids) for ids in continuations)
                tokens += weight * (prompt + answers)
        return tokens

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[DemonstrationLM]:
        from moe_lab.methods.icl_lm import DemonstrationLM, scored_prompts
        from moe_lab.methods.references.reference_set import load_or_build

        config = context.config
        references = load_or_build(config, self.config, model, base_lm(model, config))
        prompts = scored_prompts(config)
        lm = DemonstrationLM(model, config, self.config, references, prompts, context.folder)
        lm.session_info = {"reference": references.counts}
        yield lm

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        block = {
            "k": self.config.k,
            "demonstrations_dropped": counters.get("demonstrations_dropped", 0),
            "reference": self.reference_block(counters, session_info),
        }
        return {"icl": block}
