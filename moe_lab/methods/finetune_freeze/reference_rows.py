"""`method.dataset=reference`: fine-tuning on C3PO's reference questions with their right answers.

It is the control of methods that read references at test time: the same questions, in the weights.
"""

from typing import Any

from moe_lab.config.schema import Config
from moe_lab.engine.hf import encoder_of
from moe_lab.methods.data_files import ANSWERER, Conversation, Data
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.prepared import Prepared
from moe_lab.methods.references.documents import reference_documents
from moe_lab.methods.references.questions import Question, reference_questions
from moe_lab.methods.tokenized import Encoded, Row
from moe_lab.models.facts import ModelFacts
from moe_lab.models.source import load_config
from moe_lab.models.tokenizer import load_tokenizer


def prepare_references(config: Config, method: FinetuneConfig, facts: ModelFacts) -> Prepared:
    """The reference questions as the run asks its task, and their right answers, as token ids.

    The last `method.validation_size` questions are held out. Raises ConfigError and TaskError as
    `reference_documents` does, and ConfigError if nothing would be trained.
    """
    documents = reference_documents(config, method)
    questions = reference_questions(config, documents)[: method.dataset_size]
    count = len(questions) - method.held_out
    method.check_references(count)
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    length = min(method.length, facts.max_length)
    train = _encoded(config, tokenizer, questions[:count], length)
    validation = None
    if method.held_out:
        validation = _encoded(config, tokenizer, questions[count:], length)
    method.check_trains(len(train.rows))
    data = Data(
        train=[_conversation(question) for question in questions[:count]],
        validation=[_conversation(question) for question in questions[count:]],
        source={"reference": documents.label},
    )
    return Prepared(
        data=data,
        train=train,
        validation=validation,
        tokenizer=tokenizer,
        end=None,
        notes=method.notes(len(train.rows)),
    )


def _encoded(config: Config, tokenizer: Any, questions: list[Question], length: int) -> Encoded:
    """The questions as lm-eval scores their right answers. A prompt that is too long loses its
    beginning."""
    design = load_config(config.model, offline=config.offline)
    encoder = encoder_of(design, tokenizer, length, config.model.add_bos_token)
    rows = []
    for question in questions:
        prompt_ids, answer_ids = encoder.pair(question.prompt, question.right_answer)
        rows.append(Row.of(prompt_ids, answer_ids))
    return Encoded(rows=rows, truncated=encoder.cut, left_out=0)


def _conversation(question: Question) -> Conversation:
    """The texts of a question, which determine the data's digest."""
    return [
        {"role": "user", "content": question.prompt},
        {"role": ANSWERER, "content": question.right_answer},
    ]
