"""The model card of a fine-tuned model or adapter: base model, data, method, settings, scores, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.models.source import model_source

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.results.scores import Score

Table = list[list[str]]


def model_card(
    repository: str, config: Config, record: Mapping[str, Any], scores: Sequence[Score], *, model_type: str
) -> str:
    """The content of README.md.

    Args:
        model_type: of the model's configuration.
        record: training.json.
        scores: of the runs that evaluated the model, compared with the base model.
    """
    lora = record["recipe"].get("lora")
    base, hub = _base(config)
    link = f"[{base}](https://huggingface.co/{base})" if hub else f"`{base}`"
    terms = "license of the base model applies" if hub else "base model is not on the hub under this name"
    kind = f"A LoRA adapter (rank {lora['r']}) of" if lora else "A fine-tuned copy of"
    parts = [
        f"---\n{_metadata(base if hub else None, record, bool(lora))}\n---",
        f"# {repository.rpartition('/')[2]}",
        f"{kind} {link}, trained by `method=finetune-freeze` of moe_lab. The {terms}.",
        "## Training",
        _table([["", ""], *_settings(config, record)]),
        "## Scores",
        _score_part(scores),
        "## Use",
        _use(repository, base, record, model_type),
    ]
    return "\n\n".join(parts) + "\n"


def _base(config: Config) -> tuple[str, bool]:
    """(name of the base model, whether it is on the hub). The name of a folder is its last part."""
    source = model_source(config.model)
    if Path(source).is_dir():
        return Path(source).resolve().name, False
    return source, True


def _metadata(base: str | None, record: Mapping[str, Any], lora: bool) -> str:
    """The YAML that the hub reads."""
    from huggingface_hub import ModelCardData

    data = _hub_data(record)[0]
    return ModelCardData(
        base_model=base,
        base_model_relation=None if base is None else "adapter" if lora else "finetune",
        datasets=None if data is None else [data],
        library_name="peft" if lora else "transformers",
        pipeline_tag="text-generation",
        tags=["moe_lab", *(["lora"] if lora else [])],
    ).to_yaml()


def _hub_data(record: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(id, commit) of the data set on the hub; None for other data."""
    source = record.get("source") or {}
    return source.get("data_set"), source.get("commit")


def _settings(config: Config, record: Mapping[str, Any]) -> Table:
    own = config.method
    commit, (hub_data, data_commit) = record.get("commit"), _hub_data(record)
    data = hub_data or (Path(own.dataset).name if "/" in own.dataset else own.dataset)
    version = f", commit {data_commit}" if data_commit else ""
    rows = [
        ["base model", _base(config)[0] + (f", commit {commit}" if commit else "")],
        ["data", f"{data}{version}: {record['conversations']:,} conversations"],
        ["schedule", str(record["schedule"])],
        ["optimizer steps", f"{record['steps']:,}"],
        ["parameters", ", ".join(f"{name} {count:,}" for name, count in record["parameters"].items())],
        ["training loss, first and last", f"{record['first_loss']:.4g}, {record['last_loss']:.4g}"],
    ]
    if config.model.peft:
        rows.insert(1, ["merged adapter", Path(config.model.peft).name])
    losses = (record.get("validation") or {}).get("losses") or []
    if losses:
        rows.append(["validation losses", ", ".join(f"{each['loss']:.4g}" for each in losses)])
    recipe = {key: value for key, value in record["recipe"].items() if key != "phases"}
    rows += [
        [f"`{key}`", value if isinstance(value, str) else json.dumps(value)] for key, value in recipe.items()
    ]
    rows += [["seed", str(record["seed"])], ["dtype", str(record["dtype"])]]
    return [*rows, ["versions", ", ".join(f"{name} {one}" for name, one in record["versions"].items())]]


def _score_part(scores: Sequence[Score]) -> str:
    if not scores:
        return "Not evaluated."
    from moe_lab.results.score_table import explained_marks

    head = ["task", "metric", "examples", "base model", "this model", "95% interval", "difference", "p"]
    rows = [
        [
            *(each.task, each.metric, "" if each.n is None else f"{each.n:,}"),
            *(_number(each.baseline), _number(each.value), _interval(each.interval)),
            *(_number(each.difference, sign=True), _number(each.p if each.p_holm is None else each.p_holm)),
        ]
        for each in scores
    ]
    notes = explained_marks(mark for each in scores for mark in each.marks)
    tests = max((each.family or 0 for each in scores), default=0)
    notes += (
        [f"p: corrected by Holm for {tests} comparisons. Intervals are not corrected."] if tests > 1 else []
    )
    return "\n\n".join([_table([head, *rows]), *notes])


def _number(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if sign else ''}.4f}"


def _interval(limits: tuple[float, float] | None) -> str:
    return "" if limits is None else f"{limits[0]:.4f} to {limits[1]:.4f}"


def _table(rows: Table) -> str:
    """Markdown; the first row is the head."""
    head, *rest = ([each.replace("|", "\\|").replace("\n", " ") for each in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])


def _use(repository: str, base: str, record: Mapping[str, Any], model_type: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if record["recipe"].get("lora"):
        code = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'base = AutoModelForCausalLM.from_pretrained("{base}")',
            f'model = PeftModel.from_pretrained(base, "{repository}")',
        ]
        keys = f"model.path={base} model.peft={repository}"
    else:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("{repository}")',
        ]
        keys = f"model.path={repository}"
    if model_type not in CONFIG_MAPPING_NAMES:
        code.insert(0, f"import moe_lab.models.designs  # {model_type} is not in transformers")
    code.append(f'tokenizer = AutoTokenizer.from_pretrained("{repository}")')
    lines = [
        "```python",
        *code,
        "```",
        "",
        "```",
        f"python -m moe_lab method=base {keys} task=arc_easy",
        "```",
    ]
    if record["recipe"].get("partners"):
        lines += [
            "",
            "It was trained under collaboration-constrained routing, which this code does not apply.",
        ]
    return "\n".join(lines)
