"""What a trial is measured by. Broken by: prompts or answers other than the task's, tokens that are not the answer's,
pruning that loses the best trial.
"""

import math

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM
from moe_lab.runs.tuning.study import prepare_study
from moe_lab.runs.tuning.tune import Accuracy, Perplexity, Pruned, objective
from tests.support.runs import tuned


def study_of(*args, **keys):
    return prepare_study(tuned(*args, **keys))


def lm_for(olmoe, tokenizer, ensemble=None, reuse=True) -> EngineLM:
    return EngineLM(olmoe, tokenizer, ensemble=ensemble or Ensemble(), reuse=reuse, progress=False)


ANSWERS = {
    "gsm8k": lambda task, d: (f"Question: {d['question']}\nAnswer:", " " + d["answer"]),
    "arc_easy": lambda task, d: (
        f"Question: {d['question']}\nAnswer:",
        " " + d["choices"]["text"]["ABC".index(d["answerKey"])],
    ),
}


@pytest.mark.parametrize("task", ANSWERS)
def test_perplexity_is_that_of_the_reference_answers(task, tiny_olmoe_dir, data, tmp_path, olmoe, tokenizer):
    """Against the untouched model, document by document."""
    study = study_of(tiny_olmoe_dir, data, tmp_path, task, num_fewshot=0, tuning={"metric": "perplexity"})
    cost = tokens = 0.0
    for document in study.task.task_docs:
        context, answer = ANSWERS[task](study.task, document)
        length = len(tokenizer(answer).input_ids)
        ids = torch.tensor([tokenizer(context).input_ids + tokenizer(answer).input_ids])
        with torch.no_grad():
            log_probs = olmoe(ids).logits.double().log_softmax(-1)[0]
        for place in range(ids.shape[1] - length, ids.shape[1]):
            cost -= log_probs[place - 1, ids[0, place]].item()
        tokens += length
    measured = Perplexity(study, lm_for(olmoe, tokenizer))(None, lambda *_: None)
    assert measured == pytest.approx(math.exp(cost / tokens), rel=1e-4)


def test_perplexity_of_running_text_is_per_token(tiny_olmoe_dir, data, tmp_path, olmoe, tokenizer):
    study = study_of(tiny_olmoe_dir, data, tmp_path, "toy_text")
    lm = lm_for(olmoe, tokenizer)
    texts = [document["text"] for document in study.task.task_docs]
    cost = -sum(lm.loglikelihood_rolling([_instance((text,)) for text in texts]))
    tokens = sum(len(tokenizer(text).input_ids) for text in texts)
    assert Perplexity(study, lm)(None, lambda *_: None) == pytest.approx(math.exp(cost / tokens))


def test_accuracy_is_lm_evals_and_the_same_again(tiny_olmoe_dir, data, tmp_path, olmoe, tokenizer):
    study = study_of(tiny_olmoe_dir, data, tmp_path, "arc_easy", tuning={"metric": "accuracy"})
    lm = lm_for(olmoe, tokenizer)
    measure = objective(study, lm)
    assert isinstance(measure, Accuracy)
    right = 0
    for document in study.task.task_docs:
        prompt = f"Question: {document['question']}\nAnswer:"
        asked = [_instance((prompt, f" {text}")) for text in document["choices"]["text"]]
        scores = [lm.loglikelihood([one])[0][0] for one in asked]
        right += "ABC"[scores.index(max(scores))] == document["answerKey"]
    value = measure(None, lambda *_: None)
    assert value == right / 4 == measure(None, lambda *_: None)


def _instance(args):
    from lm_eval.api.instance import Instance

    return Instance(request_type="loglikelihood", doc={}, arguments=args, idx=0)


def test_pruning_stops_only_what_cannot_be_best(tiny_olmoe_dir, data, tmp_path, olmoe, tokenizer):
    study = study_of(tiny_olmoe_dir, data, tmp_path, "gsm8k", num_fewshot=1, tuning={"metric": "perplexity"})
    method = study.method
    lm = lm_for(olmoe, tokenizer, method.ensemble([0.0] * 4, 1, 0))
    measure = Perplexity(study, lm)
    for layers in ([0, 0.5, 0.5, 0], [0, 5.0, 0.1, 0]):
        lm.set_ensemble(method.ensemble(list(map(float, layers)), 1, 0))
        value = measure(None, lambda *_: None)
        assert measure(value * 1.0001, lambda *_: None) == pytest.approx(value)
        seen = []
        with pytest.raises(Pruned):
            measure(1.5, lambda *reported, seen=seen: seen.append(reported))
        [(partial, count)] = seen
        assert count < len(measure.requests) and partial > 1.5
        assert measure(None, lambda *_: None) == pytest.approx(value)  # nothing is left of the pruned trial
