"""An adapter on the hub (`model.peft=owner/name`). Broken by: an identity without its commit, files that a run offline
lacks after mode=prefetch, an adapter of another base model.
"""

from __future__ import annotations

import peft
import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.facts import model_facts
from moe_lab.models.identity import model_identity
from tests.support.adapters import make_adapter
from tests.support.command import run_command
from tests.support.hub.content import OLMOE
from tests.support.hub.repositories import Repository
from tests.support.models import make_model


@pytest.mark.slow
def test_an_adapter_of_the_hub_is_fetched_once_and_known_by_its_commit(client, hub, tmp_path, capsys):
    make_adapter(make_model("olmoe"), peft.LoraConfig(target_modules=["q_proj"]), tmp_path / "a")
    files = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    repository = hub.add(Repository("someone/adapter"))
    commit = repository.commit(files)
    command = [f"model.path={OLMOE}", "model.peft=someone/adapter", "task=toy_choice", "method=base"]
    ended = run_command(capsys, *command, "mode=prefetch")
    assert ended.code == 0, ended.err
    model = ModelConfig(path=OLMOE, peft="someone/adapter")
    assert model_identity(OLMOE, model)["peft"] == {"hub": "someone/adapter", "revision": commit}
    hub.log.clear()
    out = f"output_dir={tmp_path / 'outputs'}"
    ended = run_command(capsys, *command, "offline=true", "limit=2", out)
    assert ended.code == 0, ended.err
    assert not hub.log


def test_an_adapter_of_another_base_model_is_refused_by_its_configuration(client, hub):
    config = b'{"peft_type": "LORA", "base_model_name_or_path": "someone/else"}'
    repository = hub.add(Repository("someone/adapter"))
    repository.commit({"adapter_config.json": config, "adapter_model.safetensors": b"not read"})
    model = ModelConfig(path=OLMOE, peft="someone/adapter")
    with pytest.raises(ModelError, match=f"was trained on someone/else, and the model is {OLMOE}"):
        model_facts(model, dtype="auto", device="cpu", offline=False)
