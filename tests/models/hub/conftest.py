"""A loopback hub, and the hub's clients pointed to it: in this process,
or by the environment of a command."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub.commands import Commands, new_command
from tests.support.hub.content import GSM8K, OLMOE, gsm8k, small_olmoe
from tests.support.hub.repositories import Repository
from tests.support.hub.server import Hub


@pytest.fixture(scope="session")
def olmoe_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return small_olmoe(tmp_path_factory.mktemp("olmoe"))


@pytest.fixture
def hub(olmoe_files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub with one commit of OLMoE and one of GSM8K."""
    hub = Hub()
    hub.add(Repository(OLMOE)).commit(olmoe_files)
    hub.add(Repository(GSM8K, "datasets")).commit(gsm8k())
    with hub.serving():
        yield hub


@pytest.fixture
def olmoe_repository(hub: Hub) -> Repository:
    return hub.repositories["models", OLMOE.lower()]


@pytest.fixture
def client(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """huggingface_hub of this process asks the loopback hub. The value is its cache,
    which is empty."""
    from huggingface_hub import constants

    cache = tmp_path / "cache"
    changes = {
        "HF_HUB_OFFLINE": False,
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_HUB_ETAG_TIMEOUT": 1,
        "HF_HUB_DOWNLOAD_TIMEOUT": 1,
    }
    for name, value in changes.items():
        monkeypatch.setattr(constants, name, value)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    new_command()
    yield cache
    new_command()


@pytest.fixture
def commands(hub: Hub, tmp_path: Path) -> Commands:
    return Commands(hub, tmp_path)
