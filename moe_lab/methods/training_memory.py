"""The planned memory of a training: weights, gradients, the optimizer's moments and step,
and activations.

It is an upper bound from the sizes of tensors. What a device adds (context, workspaces,
fragmentation) is not counted.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from moe_lab.engine.footprint import kept_in_training
from moe_lab.methods.finetune_freeze.config import ADAMW, EIGHT_BIT
from moe_lab.models.memory import weight_bytes

BLOCK = 256
"""torchao's AdamW8bit: the numbers that share a float32 scale."""
CODES = 256
"""torchao's AdamW8bit: the float32 values of the codes of a tensor."""
LEAST_QUANTIZED = 4096
"""torchao's AdamW8bit: the numbers of the smallest tensor in 8 bits."""
STEP_BYTES = 42
"""Bytes for each number of the largest tensor in a step of torchao's AdamW8bit that is not
compiled."""
LOGIT_BYTES = 24
"""Bytes for each logit: the logits with their gradient, and in float32 a copy,
its log-probabilities and gradients."""


def peak_bytes(
    model: Any,
    *,
    optimizer: str,
    on_gpu: bool,
    rows: int,
    length: int,
    bf16: bool,
    checkpointing: bool = False,
    optim_args: str | None = None,
) -> int:
    """The planned peak bytes of a training on one device.

    Args:
        model: on the meta device; the parameters that require gradients are trained.
        optimizer: `optim` of TrainingArguments; `optim_args` as there.
        rows: sequences of a pass, each of `length` tokens.
        bf16: whether it is computed by autocast.
        checkpointing: whether layers are computed again in the backward pass.

    Activations are missing for a family whose own code reads values of tensors (DBRX, JetMoE,
    LongCat-Flash, Step-3.7).
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = bytes_of(trained)
    largest = max(trained, key=torch.numel)
    if optimizer == EIGHT_BIT:
        step = STEP_BYTES * largest.numel()
    elif optimizer == "adamw_torch_fused":
        step = 0
    else:
        # a GPU computes all tensors at once, with a copy of their gradients;
        # a CPU computes one after the other
        step = gradients if on_gpu else 3 * bytes_of([largest])
    try:
        kept = rows * kept_in_training(model, length)
    except NotImplementedError:
        kept = 0
    config = model.config.get_text_config(decoder=True)
    tokens = rows * length
    if config._attn_implementation == "eager":
        kept += kept // 2  # attention scores in other dtypes, and their gradients
    elif rows > 1:  # each layer keeps the mask of padded rows as numbers
        kept += config.num_hidden_layers * tokens * length * model.dtype.itemsize
    copies = 0
    if bf16 and model.dtype == torch.float32:
        # autocast copies experts [E, ...] again with their layer, and keeps copies of matrices
        for parameter in model.parameters():
            if parameter.dim() < 3 or not checkpointing:
                copies += parameter.numel() * torch.bfloat16.itemsize
    layer = kept // config.num_hidden_layers
    if checkpointing:
        kept = tokens * config.num_hidden_layers * config.hidden_size * model.dtype.itemsize + layer
    # of a layer, and the gradient of its experts with a transposed copy
    backward = 2 * (layer + bytes_of([largest]))
    passes = kept + copies + max(LOGIT_BYTES * tokens * config.vocab_size, backward)
    moments = moment_bytes(trained, optimizer, optim_args)
    return weight_bytes(model) + moments + gradients + max(passes, step)


def moment_bytes(
    parameters: Sequence[Tensor], optimizer: str, optim_args: str | None = None
) -> int:
    """Bytes of the optimizer's state for these parameters.

    AdamW has two moments of their dtype, or of torchao's blocks of 8 bits. Other optimizers of
    torch and transformers take a step without numbers here. Those of other packages, which need
    less than AdamW, count as AdamW.
    """
    if optimizer in ADAMW and optimizer != EIGHT_BIT:
        return 2 * bytes_of(parameters)
    if optimizer != EIGHT_BIT:
        total = 0
        for parameter in parameters:
            total += _state_bytes(optimizer, optim_args, parameter.shape, parameter.dtype)
        return total
    one_moment = 0
    for parameter in parameters:
        count = parameter.numel()
        is_quantized = count >= LEAST_QUANTIZED and count % BLOCK == 0
        if is_quantized:
            scales = count // BLOCK
            one_moment += count + 4 * (scales + CODES)
        else:
            one_moment += bytes_of([parameter])
    return 2 * one_moment


@cache
def _state_bytes(
    optimizer: str, optim_args: str | None, shape: torch.Size, dtype: torch.dtype
) -> int:
    """Bytes of the state of one parameter after a step of transformers' optimizer."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import Trainer

    from moe_lab.methods.training_arguments import argument_defaults

    arguments = {**argument_defaults(), "optim": optimizer, "optim_args": optim_args}
    kind, options = Trainer.get_optimizer_cls_and_kwargs(SimpleNamespace(**arguments))
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype))
        parameter.grad = torch.empty_like(parameter)
        # those of other packages count as AdamW
        if not kind.__module__.startswith(("torch.", "transformers.")):
            return 2 * bytes_of([parameter])
        instance = kind([parameter], **options)
        instance.step()
        state = instance.state[parameter].values()
        return bytes_of(value for value in state if isinstance(value, Tensor))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of these tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
