"""`method=c3po`: pathways of test questions, optimized on similar questions that the model answers
correctly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from moe_lab.config.schema import Config as RunConfig
from moe_lab.engine.token_span import named_tokens
from moe_lab.errors import ConfigError
from moe_lab.methods.base import base_lm
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.method import Context, Counters, SessionInfo, share
from moe_lab.methods.references.documents import check_one_process
from moe_lab.methods.references.reference_method import ReferenceMethod
from moe_lab.results.model import RunBlock
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.requests import right_request
from moe_lab.tasks.workload import Workload

if TYPE_CHECKING:
    from moe_lab.methods.c3po.engine import C3POLM
    from moe_lab.models.facts import LoadedModel, ModelFacts


REPORTED = (
    "optimizer",
    "k",
    "epsilon",
    "kernel",
    "steps",
    "core_experts",
    "tokens",
    "loss",
    "persistence",
)
"""Keys that results.json has, too."""
_PART = re.compile(r"(first|middle|last)(\d+)")


def named_layers(given: Any, count: int) -> list[int]:
    """Sorted MoE layer numbers of `last5`, `first2+last3`, `middle4`, `all`, or a list of numbers.

    >>> named_layers("first2+last3", 16)
    [0, 1, 13, 14, 15]

    Raises ConfigError for an unknown name and for more layers than `count`.
    """
    if isinstance(given, list):
        layers = given
    elif given == "all":
        layers = list(range(count))
    else:
        layers = []
        for part in str(given).split("+"):
            layers += _layers_of_part(given, part, count)
    are_layers = all(isinstance(layer, int) and 0 <= layer < count for layer in layers)
    if not layers or not are_layers or len(set(layers)) < len(layers):
        raise ConfigError(
            f"method.layers={given}: the model has MoE layers 0 to {count - 1}, and each may be "
            "named once."
        )
    return sorted(layers)


def _layers_of_part(given: Any, part: str, count: int) -> range:
    """The layers of one name in `method.layers`, such as `last5`."""
    match = _PART.fullmatch(part)
    if not match or not 1 <= int(match[2]) <= count:
        raise ConfigError(
            f"method.layers={given}: the model has {count} MoE layers, and {part} does not name "
            "some. Use e.g. last5, first2+last3, middle4, all or [11,12,13]."
        )
    size = int(match[2])
    starts = {"first": 0, "middle": (count - size) // 2, "last": count - size}
    start = starts[match[1]]
    return range(start, start + size)


class QuestionsWithout(NamedTuple):
    """The questions of a run that have no neighbour."""

    without: int
    """Their number."""
    questions: int
    """The number of all questions."""


class C3PO(ReferenceMethod):
    """Optimizes the pathways of test questions on their neighbours."""

    answer: ClassVar[str | None] = "letters"
    numerics: ClassVar[int] = 4
    reports_changed_answers: ClassVar[bool] = True
    figures: ClassVar[tuple[str, ...]] = ("steps", "activation", "sample", "retained")

    Config = C3POConfig

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError for layers that the model lacks, and for routers that do not choose by
        logits."""
        from moe_lab.routing.rules import LOGITS

        named_layers(self.config.layers, facts.moe_layers)  # raises ConfigError
        family = facts.routers
        assert family is not None
        if family.rule.noise != LOGITS:
            raise ConfigError(
                f"method=c3po needs routers that choose by logits; those of {family.name} do not. "
                "Use another model."
            )

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The reference documents. Raises ConfigError or TaskError if they are missing."""
        from moe_lab.methods.references.reference_set import references_identity

        check_one_process(config)
        for name, task in load_tasks(config)["tasks"].items():
            if task.get_config("output_type") not in ("multiple_choice", "generate_until"):
                raise ConfigError(
                    f"method=c3po answers questions, and {name} asks for the likelihood of texts. "
                    "Use another task."
                )
        if self.config.optimizer == "oracle":
            return {}
        return references_identity(config, self.config, facts)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """`layers` as numbers."""
        layers = named_layers(self.config.layers, facts.moe_layers)
        return super().identity(facts) | {"layers": layers}

    def forward_tokens(self, workload: Workload, config: RunConfig, facts: ModelFacts) -> float:
        """The tokens of the answers, of the neighbours (read once), and of their prompts' suffixes
        in every pass.

        With `epsilon` the number of neighbours is not known yet; k is assumed.
        """
        from moe_lab.methods.references.store import ANSWER_TOKENS

        settings = self.config
        neighbours = 1 if settings.optimizer == "oracle" else settings.k
        answer = min(ANSWER_TOKENS, workload.answer)
        read = neighbours * (workload.prompt + answer)
        span = named_tokens(settings.tokens)
        length = max(round(workload.prompt), span.size)
        suffix = length - span.start(length) + answer - 1
        passed = neighbours * settings.passes * suffix
        answers = super().forward_tokens(workload, config, facts)
        return answers + workload.documents * (read + passed)

    def held(self, workload: Workload, facts: ModelFacts) -> tuple[float, float]:
        """(cached slots, rows of logits) for the questions that are optimized together, and for
        their neighbours.

        Neighbours are cached from the first changed layer on.
        """
        from moe_lab.methods.c3po.engine import AT_ONCE
        from moe_lab.methods.references.store import ANSWER_TOKENS

        changed = 1 - named_layers(self.config.layers, facts.moe_layers)[0] / facts.moe_layers
        slots = AT_ONCE * (1 + self.config.k) * changed * workload.longest
        answers_per_question = workload.requests / max(1, workload.documents)
        answer_tokens = min(ANSWER_TOKENS, workload.answer)
        return max(slots, workload.longest), AT_ONCE * answers_per_question * answer_tokens

    def references_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, float]:
        """The oracle reads none."""
        if self.config.optimizer == "oracle":
            return {}
        return super().references_left(config, facts)

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[C3POLM]:
        from moe_lab.methods.c3po.engine import C3POLM
        from moe_lab.methods.c3po.traces import TRACES
        from moe_lab.methods.references.reference_set import load_or_build

        config = context.config
        references = None
        gold_of = None
        session_info = {}
        if self.config.optimizer == "oracle":
            gold_of = right_answers(config)
        else:
            references = load_or_build(config, self.config, model, base_lm(model, config))
            session_info = {"reference": references.counts}
        layers = named_layers(self.config.layers, model.facts.moe_layers)
        trace = context.folder / TRACES if self.config.trace and context.folder else None
        lm = C3POLM(model, config, self.config, layers, references, gold_of, trace)
        lm.session_info = session_info
        yield lm

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        """The method's block of results.json."""
        settings = self.config
        block = {key: getattr(settings, key) for key in REPORTED}
        block["upper_bound"] = settings.optimizer == "oracle"
        block["layers"] = named_layers(settings.layers, facts.moe_layers)
        block["flops_per_sample"] = share(counters, "flops", "flops_questions")
        block["flops_plain_per_sample"] = share(counters, "flops_plain", "flops_questions")
        block["reference"] = self.reference_block(counters, session_info)
        return {"c3po": block}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        lines = []
        result = RunBlock.model_validate(block)
        reference_set = result.report.get("reference", {}).get("set")
        if reference_set:
            lines.append(
                f"c3po: its {reference_set['asked']:,} reference questions are answered once for "
                "all runs; the costs above leave them out."
            )
        counts = C3PO.without_neighbour(result)
        if counts is not None:
            epsilon = block["c3po"]["epsilon"]
            lines.append(
                f"c3po, epsilon {epsilon}: {counts.without} of {counts.questions} questions had no "
                "neighbour and kept their pathway."
            )
        return lines

    @staticmethod
    def without_neighbour(result: RunBlock) -> QuestionsWithout | None:
        """The questions without a neighbour; None if each has one, and for the oracle."""
        report = result.report
        without = report.get("reference", {}).get("questions_without", 0)
        each_has_one = report.get("epsilon") is None and not without
        if report.get("upper_bound") or each_has_one:
            return None
        return QuestionsWithout(without, result.num_documents)


def right_answers(config: RunConfig) -> dict[str, str]:
    """The right answers of this run's test documents by prompt, for the oracle.

    Raises ConfigError for a prompt with several right answers, which would need several pathways.
    """
    golds: dict[str, str] = {}
    for task in load_tasks(config)["tasks"].values():
        by_document: dict[int, list[Any]] = {}
        for instance in task.instances:
            by_document.setdefault(instance.doc_id, []).append(instance)
        for instances in by_document.values():
            _, right = right_request(config, task, instances)
            for instance in instances:
                prompt = instance.args[0]
                if golds.setdefault(prompt, right) != right:
                    raise ConfigError(
                        "method.optimizer=oracle needs a prompt per question: task.answer=letters."
                    )
    return golds
