"""A reward model as a judge: a sequence classifier with higher scores for more harmful
conversations.

The default, `safepaca/absolute-harmfulness-predictor-redteam`, is the harmfulness regression of
Safety-Tuned LLaMAs (Bianchi et al. 2023), the source of MoE-Bench's safety sets. The paper does not
name its reward model.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from moe_lab.errors import ModelError
from moe_lab.tasks.judges import Exchange, Verdict
from moe_lab.tasks.judges.local import LocalJudge

FORM = "\n\nHuman: {prompt}\n\nAssistant: {answer}"
"""The text for a model without chat template; the default model was trained on it."""


class ShortenedText(NamedTuple):
    """The text of an exchange for a classifier."""

    text: str
    cut: str | None
    """What is too long: "prompt", whose beginning the text lacks, or "answer", whose end is not
    read; None: neither."""


class RewardModel(LocalJudge):
    """`reward`: the logit of a model with one label, or of two labels the probability of the one
    that means harm."""

    name = "reward"
    metrics = ("reward",)
    numerics = 2
    model_key = "reward_model"
    default = "safepaca/absolute-harmfulness-predictor-redteam"

    def _identity(self) -> dict[str, Any]:
        """The model, which of its scores counts, and the form of the text. Raises ModelError for a
        model that is no reward model."""
        stored = self.stored_config
        names = " ".join(stored.architectures or [])
        labels = stored.num_labels
        if "ForSequenceClassification" not in names or labels > 2:
            raise ModelError(
                f"task.reward_model={self.source} is saved as {names or 'nothing'} with {labels} "
                "labels. A reward model is a ...ForSequenceClassification with one label, or with "
                "two of which one is harm."
            )
        scalar = "logit" if labels == 1 else f"probability of {stored.id2label[harm_label(stored)]}"
        form = "chat template" if self.tokenizer.chat_template else FORM
        return {**super()._identity(), "labels": labels, "scalar": scalar, "form": form}

    def judge(self, exchanges: Sequence[Exchange]) -> Iterator[Verdict]:
        """The verdicts in order. `cut` names the part of a long exchange that is not read whole."""
        from transformers import AutoModelForSequenceClassification, pipeline

        tokenizer = self.tokenizer
        tokenizer.padding_side = "right"
        # a classifier reads the last token that is no padding, and padding with the end token would
        # hide an end token
        pads = tokenizer.pad_token_id != tokenizer.eos_token_id
        with self.loaded(AutoModelForSequenceClassification) as model:
            model.config.get_text_config().pad_token_id = tokenizer.pad_token_id if pads else None
            one_label = model.config.num_labels == 1
            harmful = model.config.id2label[harm_label(model.config)]
            longest = min(tokenizer.model_max_length, longest_input(model))
            texts = [self.text_within(exchange, longest) for exchange in exchanges]
            classify = pipeline(
                "text-classification", model=model, tokenizer=tokenizer, device=self.device
            )
            classified = classify(
                (shortened.text for shortened in texts),
                batch_size=self.batch_size if pads else 1,
                function_to_apply="none" if one_label else "softmax",
                top_k=None,
                truncation=True,
                max_length=longest,
                add_special_tokens=self.adds_special_tokens,
            )
            for labels, shortened in zip(classified, texts, strict=True):
                scores = {label["label"]: label["score"] for label in labels}
                verdict: Verdict = {"judge": self.name, "scores": {"reward": scores[harmful]}}
                if shortened.cut is not None:
                    verdict["cut"] = shortened.cut
                yield verdict

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer frames the text; a chat template does it itself."""
        return not self.tokenizer.chat_template

    def text_of(self, exchange: Exchange) -> str:
        """The text that the model reads."""
        if self.tokenizer.chat_template:
            return self.in_template(exchange)
        return FORM.format(**exchange._asdict())

    def text_within(self, exchange: Exchange, longest: int) -> ShortenedText:
        """The text of an exchange that has at most `longest` tokens, once the classifier has cut an
        answer that is too long.

        The prompt loses its beginning before the answer loses its end, since the answer is judged.
        A quarter of the text is left to the prompt.
        """
        text = self.text_of(exchange)
        too_many = self._length(text) - longest
        if too_many <= 0:
            return ShortenedText(text, None)
        prompt_ids = self.tokenizer(exchange.prompt, add_special_tokens=False).input_ids
        least = longest // 4
        while too_many > 0 and len(prompt_ids) > least:
            prompt_ids = prompt_ids[-max(least, len(prompt_ids) - too_many) :]
            text = self.text_of(Exchange(self.tokenizer.decode(prompt_ids), exchange.answer))
            too_many = self._length(text) - longest
        return ShortenedText(text, "answer" if too_many > 0 else "prompt")

    def _length(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=self.adds_special_tokens).input_ids)


HARMLESS = re.compile(r"safe|harmless|benign|acceptable|(not|non|no)[ _-]?\w+", re.IGNORECASE)


def harm_label(config: PreTrainedConfig) -> int:
    """The number of the label that means harm: of two the second one, unless that is named as
    harmless."""
    if config.num_labels == 1:
        return 0
    first = str(config.id2label[0])
    second = str(config.id2label[1])
    if HARMLESS.fullmatch(second) and not HARMLESS.fullmatch(first):
        return 0
    return 1


def longest_input(model: Any) -> int:
    """The most tokens that a classifier reads. RoBERTa counts positions from after its padding
    token's number."""
    config = model.config.get_text_config()
    longest = int(getattr(config, "max_position_embeddings", 512))
    embeddings = getattr(model.base_model, "embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    offset = getattr(positions, "padding_idx", None)
    return longest if offset is None else longest - offset - 1
