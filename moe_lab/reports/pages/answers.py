"""An answer in lm-eval's sample log: a generated text, or log-probabilities of the choices."""

from collections.abc import Callable
from dataclasses import dataclass

from moe_lab.results.samples import Sample

PICKED_BY: dict[str, Callable[[float, str], float]] = {
    "acc": lambda score, choice: score,
    "acc_norm": lambda score, choice: score / max(1, len(choice.lstrip())),
}
"""The value that lm-eval's accuracies maximize over the choices: log-probability, or
log-probability per character."""
LONGEST_MARK = 40
"""Most characters of the mark that a filter returns if it finds no answer, such as [invalid]."""


@dataclass(frozen=True)
class Answer:
    """An answer to one document."""

    sample: Sample
    prompt: str
    text: str | None
    """The generated text; None for a scored choice."""
    choices: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    """The log-probability of each choice, in nats."""
    picked: int | None = None
    """The choice that the metric takes; None if this package does not know the metric's rule."""
    extracted: str | None = None
    """The part of the text that the metric reads, such as the number after ####; None if it reads
    the whole text."""

    @property
    def target(self) -> str:
        """The right answer. lm-eval logs a text, or the number of the right choice."""
        target = str(self.sample.target)
        if len(self.choices) > 1 and target.isdecimal() and int(target) < len(self.choices):
            return self.choices[int(target)].strip()
        return target


def answer_of(sample: Sample, metric: str) -> Answer | None:
    """The answer in a sample log; None for a text that is scored as a whole.

    If each choice has its own prompt (WinoGrande), the prompts become the choices, and their common
    end the prompt.

    Args:
        metric: the name of the metric, without the filter.
    """
    requests = sample.requests
    if not requests or len(requests[0]) < 2:
        return None
    if not isinstance(requests[0][1], str):
        return _generated(sample)
    if "acc_mutual_info" in sample.values:  # the second half has the choices without the question
        requests = requests[: len(requests) // 2]
    prompts = [str(request[0]) for request in requests]
    endings = [str(request[1]) for request in requests]
    scores = tuple(float(response[0][0]) for response in sample.responses[: len(requests)])

    prompt = prompts[0]
    choices = endings
    rule = PICKED_BY.get(metric)
    if len(set(prompts)) > 1 and len(set(endings)) == 1:
        prompt = endings[0]
        choices = prompts
        if metric != "acc":
            # acc_norm divides by the length of the ending, which is the same for all
            rule = None

    picked = None
    if len(choices) > 1 and rule is not None:
        values = [rule(score, choice) for score, choice in zip(scores, choices, strict=False)]
        picked = values.index(max(values))
    return Answer(sample, prompt, None, tuple(choices), scores, picked)


def _generated(sample: Sample) -> Answer:
    """A generated text. For several texts the first one, and the result of their vote."""
    prompt = str(sample.requests[0][0])
    text, *more_texts = map(str, sample.responses[0])
    if more_texts:
        vote = f"[first of {len(more_texts) + 1} answers; evaluated: {sample.filtered[0]}]"
        return Answer(sample, prompt, f"{text}\n\n{vote}")
    return Answer(sample, prompt, text, extracted=_extracted(sample, text))


def _extracted(sample: Sample, text: str) -> str | None:
    """The part of a generated text that the task's filter returns.

    None if it returns the whole text.
    """
    if len(sample.filtered) != 1 or not isinstance(sample.filtered[0], str):
        return None
    filtered = sample.filtered[0]
    whole = text.strip()
    if filtered.strip() == whole:
        return None
    # a filter of code returns more than the text: prompt and text
    if len(filtered) > max(LONGEST_MARK, len(whole)):
        return None
    return filtered
