"""The model card of a fine-tuned model or adapter: base model, data, settings, scores, how to load it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from moe_lab.config.schema import Config
from moe_lab.models.source import model_source
from moe_lab.results.score_table import explained_marks
from moe_lab.results.scores import Score

COURSE = ("conversations", "schedule", "steps", "parameters", "first_loss", "last_loss", "validation")
"""Keys of training.json about the course of a training that the card shows."""
COLUMNS = "| task | metric | examples | base model | this model | 95% interval | difference | p |"


def model_card(
    repository: str, config: Config, record: Mapping[str, Any], scores: Sequence[Score], *, model_type: str
) -> str:
    """The content of README.md.

    Args:
        model_type: of the model's configuration.
        record: training.json.
        scores: of the runs that evaluated the model, compared with the base model.
    """
    recipe, data, source = record["recipe"], record.get("source") or {}, model_source(config.model)
    lora, hub = recipe.get("lora"), not Path(source).is_dir()
    base = source if hub else Path(source).resolve().name  # no path of this machine
    metadata = ModelCardData(
        base_model=base if hub else None,
        base_model_relation=None if not hub else "adapter" if lora else "finetune",
        datasets=[data["data_set"]] if data else None,
        library_name="peft" if lora else "transformers",
        pipeline_tag="text-generation",
        tags=["moe_lab", *(["lora"] if lora else [])],
    )
    settings = {
        "base_model": {"name": base, "commit": record.get("commit")},
        "data": data or Path(config.method.dataset).name,
        **{key: record[key] for key in COURSE},
        **{key: value for key, value in recipe.items() if key != "phases"},
        **{key: record[key] for key in ("seed", "dtype", "versions")},
    }
    if config.model.peft:
        settings["merged_adapter"] = Path(config.model.peft).name
    load = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if model_type not in CONFIG_MAPPING_NAMES:
        load.insert(0, f"import moe_lab.models.designs  # {model_type} is not in transformers")
    load.append(f'model = AutoModelForCausalLM.from_pretrained("{base if lora else repository}")')
    if lora:
        load.insert(0, "from peft import PeftModel")
        load.append(f'model = PeftModel.from_pretrained(model, "{repository}")')
    load.append(f'tokenizer = AutoTokenizer.from_pretrained("{repository}")')
    keys = f"model.path={base} model.peft={repository}" if lora else f"model.path={repository}"
    parts = [
        f"---\n{metadata.to_yaml()}\n---",
        f"# {repository.rpartition('/')[2]}",
        f"{'A LoRA adapter of' if lora else 'A fine-tuned copy of'} `{base}`, trained by `method=finetune-freeze` of "
        f"moe_lab. The base model {'has its own license' if hub else 'is not on the hub under this name'}.",
        f"## Training\n\n```yaml\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}```",
        f"## Scores\n\n{_scores(scores)}",
        "## Use",
        "\n".join(["```python", *load, "```"]),
        f"```\npython -m moe_lab method=base {keys} task=arc_easy\n```",
    ]
    if recipe.get("partners"):
        parts.append(
            "It was trained under collaboration-constrained routing, which this code does not apply."
        )
    return "\n\n".join(parts) + "\n"


def _scores(scores: Sequence[Score]) -> str:
    if not scores:
        return "Not evaluated."

    def number(value: float | None, form: str = ".4f") -> str:
        return "" if value is None else format(value, form)

    rows = [
        [
            *(each.task, each.metric, number(each.n, ",")),
            *(number(each.baseline), number(each.value)),
            " to ".join(map(number, each.interval or ())),
            *(number(each.difference, "+.4f"), number(each.p if each.p_holm is None else each.p_holm)),
        ]
        for each in scores
    ]
    notes = explained_marks(mark for each in scores for mark in each.marks)
    if (tests := max(each.family or 0 for each in scores)) > 1:
        notes.append(f"p: corrected by Holm for {tests} comparisons. Intervals are not corrected.")
    table = "\n".join([COLUMNS, "|---" * 8 + "|", *(f"| {' | '.join(row)} |" for row in rows)])
    return "\n\n".join([table, *notes])
