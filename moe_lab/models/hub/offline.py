"""Keeping the Hugging Face libraries from the network."""

from __future__ import annotations

import os
import sys


def go_offline() -> None:
    """Forbid the Hugging Face libraries the network, whether they are imported already or not."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def is_offline() -> bool:
    """Whether the libraries may not ask the hub: offline=true, HF_HUB_OFFLINE=1, or it could not be reached."""
    from huggingface_hub import constants

    return constants.is_offline_mode()
