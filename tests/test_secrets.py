"""Secrets: they come from the environment, and stand in no file, no id and no message.

Broken by: a door that takes a token or a password, a message or a log that repeats one, a file of a
run, a study or W&B that has the environment in it.
"""

from pathlib import Path

import pytest

from tests.support.command import run_command

SECRET = "secret7391"
URL = f"postgresql+psycopg2://me:{SECRET}@host/db"
TYPED = {
    "early stopping": ["method=finetune-freeze", f"method.early_stopping.token={SECRET}"],
    "data": ["method=finetune-freeze", "method.dataset.path=x/y", f"method.dataset.token={SECRET}"],
    "data by URL": [
        "method=finetune-freeze",
        "method.dataset.path=csv",
        f"method.dataset.data_files=https://me:{SECRET}@host/rows.csv",
    ],
    "launcher": ["launcher=submitit", f"launcher.parameters.password={SECRET}"],
    "model": [f"model.load.token={SECRET}"],
    "model's proxies": [f"model.load.proxies.https=https://me:{SECRET}@host"],
    "peft": ["method=finetune-freeze", f"method.peft.token={SECRET}"],
    "sampler": ["tuning=tpe", f"tuning.sampler.token={SECRET}"],
    "storage": ["tuning=tpe", f"tuning.storage={URL}"],
    "storage by class": [
        "tuning=tpe",
        "tuning.storage._target_=optuna.storages.RDBStorage",
        f"tuning.storage.url={URL}",
    ],
    "training": ["method=finetune-freeze", f"method.trainer.hub_token={SECRET}"],
    "W&B": ["logger=wandb", f"logger.init.settings.api_key={SECRET}"],
    "W&B by URL": ["logger=wandb", f"logger.init.settings.base_url=https://me:{SECRET}@host"],
}
"""Overrides with a secret, by the library that would take it."""
ENVIRONMENT = {
    "HF_TOKEN": SECRET,
    "HTTPS_PROXY": f"http://me:{SECRET}@127.0.0.1:9",
    "OPENAI_API_KEY": SECRET,
    "OPTUNA_STORAGE_PASSWORD": SECRET,
    "WANDB_API_KEY": SECRET * 4,
}
"""Where secrets belong."""


def assert_nowhere(folder: Path, *texts: str) -> None:
    """The secret is in no name and no content of a file below the folder, and in no text."""
    for text in texts:
        assert SECRET not in text
    for file in folder.rglob("*"):
        assert SECRET not in file.name
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("library", TYPED)
def test_a_typed_secret_is_refused_and_not_repeated(library, capsys, tmp_path):
    ended = run_command(capsys, *TYPED[library], "limit=2", f"output_dir={tmp_path}")
    assert ended.code == 2, ended.err
    assert_nowhere(tmp_path, ended.out, ended.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["method=base", "metrics=expert"],
        ["method=roe", "tuning=tpe", "tuning.n_trials=2", "tuning.num_samples=2"],
        ["method=finetune-freeze", "method.dataset_size=8", "method.epochs=1"],
        ["model.path=owner/private"],
        ["method=finetune-freeze", "method.dataset.path=owner/private"],
    ],
)
def test_a_secret_of_the_environment_is_nowhere(command, capsys, monkeypatch, tmp_path):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    logged = ["logger=wandb", "logger.mode=offline"]
    ended = run_command(
        capsys, *command, *logged, "task=toy_choice", "limit=2", f"output_dir={tmp_path}/out"
    )
    is_private = "owner/private" in command[-1]
    assert ended.code == (2 if is_private else 0), ended.err
    assert is_private or list(tmp_path.rglob("*.wandb")), "the run is logged"
    assert_nowhere(tmp_path, ended.out, ended.err)
