"""Breaks if an instruct model is asked HumanEval otherwise than in lm-eval's instruct form, or its reply is misread."""

from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.sandbox.programs import program, why_no_bubblewrap
from moe_lab.tasks.sandbox.replies import completion
from tests.support.documents import PROBLEMS, evaluated
from tests.support.runs import write_jsonl

COPRIME = PROBLEMS[1]
"""Its prompt imports gcd, which the function needs."""
BODY = "    return gcd(a, b) == 1\n"
AGAIN = f"def coprime(a: int, b: int) -> bool:\n{BODY}"
RIGHT = {
    "continued": BODY,
    "continued, closed and explained": f"{BODY}```\n\nIt works because:\n- gcd is 1",
    "fenced": f"```python\n{BODY}```",
    "fenced and restated": f"```python\n{AGAIN}```",
    "fenced without a language": f"```\n{AGAIN}```\nDone",
    "prefixed": f"Sure! Here is the function:\n\n```python\n{AGAIN}```\nI hope this helps!",
    "prefixed by one word": f"Sure\n```py\n{AGAIN}```",
    "restated": f"\n{AGAIN}",
    "restated after a helper": "def one(a, b):\n    return gcd(a, b) == 1\n\n\n" + AGAIN.replace("gcd(a, b) == 1", "one(a, b)"),
    "with a helper after it": AGAIN.replace("gcd(a, b) == 1", "one(gcd(a, b))") + "\ndef one(x):\n    return x == 1\n",
    "with the whole prompt": f"```python\n{COPRIME['prompt']}{BODY}```",
    "truncated in an explanation": f"```python\n{AGAIN}\n# Example\nprint(coprime(4,",
    "truncated in the next fence": f"{BODY}```\nOr shorter:\n```python\ndef coprime(a, b):\n    return",
    "with a wrong example": f"{BODY}\nassert coprime(4, 6)\n",
}  # fmt: skip
WRONG = {
    "nothing": "",
    "the docstring alone": f"```python\n{COPRIME['prompt']}```",
    "truncated in the function": "```python\ndef coprime(a: int, b: int) -> bool:\n    return gcd(a, ",
    "wrong": f"```python\n{AGAIN.replace('==', '!=')}```",
    "a refusal": "I cannot do that.",
}


def passes(reply: str) -> bool:
    """Whether the program passes. These programs are ours, so no sandbox is needed."""
    try:
        exec(program(COPRIME, completion(COPRIME, reply)), {})
    except (AssertionError, SyntaxError):
        return False
    return True


@pytest.mark.parametrize("form", RIGHT)
def test_the_function_is_found_in_a_reply(form):
    assert passes(RIGHT[form])


@pytest.mark.parametrize("form", WRONG)
def test_a_reply_without_the_function_fails(form):
    assert not passes(WRONG[form])


def chat(tmp_path: Path, **keys: Any) -> Any:
    write_jsonl(tmp_path / "humaneval" / "test.jsonl", PROBLEMS)
    return load_tasks(Config(task=TaskConfig(name="humaneval"), data_dir=str(tmp_path), **keys))


def test_prompt_is_lm_evals_instruct_form_with_a_chat_template_alone(tmp_path):
    import lm_eval
    from lm_eval.tasks._yaml_loader import load_yaml

    file = Path(lm_eval.__file__).parent / "tasks" / "humaneval" / "humaneval_instruct.yaml"
    theirs = load_yaml(file, resolve_func=False)
    ours = chat(tmp_path, apply_chat_template=True)["tasks"]["humaneval"].config
    assert (ours.doc_to_text, ours.gen_prefix) == (theirs["doc_to_text"], theirs["gen_prefix"])
    plain = chat(tmp_path)["tasks"]["humaneval"].config
    assert (plain.doc_to_text, plain.gen_prefix, len(plain.filter_list)) == ("{{prompt}}", None, 1)
    assert plain.generation_kwargs["until"] == theirs["generation_kwargs"]["until"]


@pytest.mark.slow
def test_replies_are_scored_in_the_sandbox_by_our_extraction_and_by_lm_evals(tmp_path):
    """lm-eval's finds nothing in a reply that opens with a fence, and cuts one that writes the function again."""
    if (problem := why_no_bubblewrap()) is not None:
        pytest.skip(problem)
    replies = {
        "own/0": "```python\ndef double(x):\n    return 2 * x\n```",
        "own/1": f"{BODY}```\nIt uses gcd.",
        "own/2": "\ndef mean(values):\n    return sum(values) / len(values)\n",
    }

    def answer(request: Any) -> str:
        prompt, options = request.args
        assert "Here is the completed function:\n```python\n" in prompt and options["until"] == []
        return replies[request.doc["task_id"]]

    tasks = chat(tmp_path, apply_chat_template=True)
    scores = evaluated(tasks, answer, apply_chat_template=True)["results"]["humaneval"]
    names = [key for key in scores if key.startswith("pass@1,")]
    assert names == ["pass@1,extract_code", "pass@1,create_test"], "the first is the headline"
    assert scores["pass@1,extract_code"] == 1
    assert scores["pass@1,create_test"] == pytest.approx(1 / 3)
