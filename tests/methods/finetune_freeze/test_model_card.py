"""The model card of a fine-tuned model. Broken by: metadata that the hub does not read, a base model, a setting, a score
or a note that is missing, code that does not load the model, a path of this machine.
"""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods import data_files
from moe_lab.methods.finetune_freeze.config import FinetuneConfig, Lora
from moe_lab.methods.finetune_freeze.model_card import model_card
from moe_lab.results.scores import Score

RECORD: dict[str, Any] = {
    "schedule": "N→R",
    "steps": 750,
    "conversations": 1000,
    "parameters": {"router": 16384, "other": 5},
    "first_loss": 3.0,
    "last_loss": 0.51234,
    "validation": {"losses": [{"step": 250, "loss": 0.9}, {"step": 750, "loss": 0.4}]},
    "source": {"data_set": "GAIR/lima", "commit": "abc"},
    "commit": "def",
    "seed": 3,
    "dtype": "bfloat16",
    "versions": {"moe_lab": "1.0", "transformers": "5.23.0"},
}
SCORE = Score(
    model="olmoe",
    method="finetune-freeze",
    task="arc_easy",
    metric="acc,none",
    run_id="1",
    n=2376,
    value=0.61234,
    interval=(0.59, 0.63),
    baseline=0.6,
    difference=0.01234,
    p=0.04,
    test="McNemar",
)


def card_of(
    lora: Lora | None = None,
    path: str = "owner/base",
    scores: tuple[Score, ...] = (SCORE,),
    model_type: str = "olmoe",
    **keys: Any,
) -> str:
    method = FinetuneConfig(dataset=keys.pop("dataset", "lima"), lora=lora or Lora(), schedule="none")
    recipe = method.recipe().identity() | keys.pop("recipe", {})
    config = Config(model=ModelConfig(path=path, **keys), method=method)
    record = RECORD | {"recipe": recipe}
    return model_card("lab/tuned", config, record, scores, model_type=model_type)


@pytest.mark.parametrize(
    "lora, relation, library", [(None, "finetune", "transformers"), (Lora(r=8), "adapter", "peft")]
)
def test_the_hub_reads_base_model_data_and_library(lora, relation, library):
    data = ModelCard(card_of(lora)).data
    assert (data.base_model, data.base_model_relation) == ("owner/base", relation)
    assert data.datasets == ["GAIR/lima"] and data.library_name == library and "moe_lab" in data.tags
    assert ("lora" in data.tags) == (lora is not None)


def test_the_data_set_is_read_as_a_training_writes_it(monkeypatch):
    """Broken by another key in the card than in training.json: the card then names no data set of the hub."""
    monkeypatch.setattr(data_files, "train_files", lambda id, **keys: ([], "abc"))
    assert data_files.data_files(Config(), "lima", data_files.KNOWN)[1] == RECORD["source"]
    assert "commit: abc" in card_of()


def test_settings_data_losses_and_versions_are_shown():
    shown = yaml.safe_load(card_of(Lora(r=8)).partition("```yaml\n")[2].partition("```")[0])
    assert shown["base_model"] == {"name": "owner/base", "commit": "def"}
    for key in (
        "schedule",
        "steps",
        "conversations",
        "parameters",
        "validation",
        "seed",
        "dtype",
        "versions",
    ):
        assert shown[key] == RECORD[key]
    assert shown["data"] == RECORD["source"]
    assert shown["learning_rate"] == 2e-5 and shown["lora"]["r"] == 8


def test_scores_have_the_base_model_interval_p_and_notes():
    card = card_of()
    assert "| arc_easy | acc,none | 2,376 | 0.6000 | 0.6123 | 0.5900 to 0.6300 | +0.0123 | 0.0400 |" in card
    corrected = replace(SCORE, p_holm=0.08, family=2, marks=("PARTIAL",))
    card = card_of(scores=(corrected,))
    for text in ("| 0.0800 |", "corrected by Holm for 2 comparisons", "PARTIAL: part of"):
        assert text in card
    assert "Not evaluated." in card_of(scores=())


def test_the_code_loads_the_model_or_the_adapter_on_its_base():
    assert 'AutoModelForCausalLM.from_pretrained("lab/tuned")' in card_of()
    card = card_of(Lora(r=8))
    assert 'AutoModelForCausalLM.from_pretrained("owner/base")' in card
    assert 'PeftModel.from_pretrained(model, "lab/tuned")' in card
    assert "model.path=owner/base model.peft=lab/tuned" in card
    assert "import moe_lab" not in card
    assert "import moe_lab.models.designs  # deepseek" in card_of(model_type="deepseek")
    assert "collaboration-constrained" in card_of(recipe={"partners": 8})


def test_folders_of_this_machine_are_named_by_their_last_part(tmp_path):
    (tmp_path / "mine").mkdir()
    card = card_of(path=str(tmp_path / "mine"), dataset="./own/talks.jsonl", peft="/some/where/adapter")
    assert str(tmp_path) not in card and "/some/where" not in card
    assert "name: mine" in card and "data: GAIR" not in card and "merged_adapter: adapter" in card
    assert ModelCard(card).data.base_model is None and "not on the hub under this name" in card
