"""Offline mode of the Hugging Face libraries."""

from __future__ import annotations

import os
import sys


def go_offline() -> None:
    """Set the Hugging Face libraries to offline mode, before or after they are imported."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:
            sys.modules[name].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def is_offline() -> bool:
    """Whether the libraries are offline: by offline=true, HF_HUB_OFFLINE=1, or after the hub could not be reached."""
    from huggingface_hub import constants

    return constants.is_offline_mode()
