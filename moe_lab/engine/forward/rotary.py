"""Rotary embeddings that depend on the length of a text (longrope, dynamic).

transformers computes them from the largest position of a pass, and some remember the longest text
so far. So a number would depend on the requests that share a pass, or that came before. Here every
sequence of a pass gets the embeddings that its own text gets alone.

No table of types says which embeddings these are: a module is asked for the embedding of one
position in texts of two lengths. B = sequences of a pass, S = tokens of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.layers import argument_names, layer_inputs
from moe_lab.models.transformers_internals import drops_cache

_PROBED = 1
"""The position whose embedding shows the kind of a text. At position 0 all frequencies have the
same embedding."""
_LONGEST = 2**30
"""Tokens of a text that is longer than any limit."""


class RotaryHooks:
    """Hooks that give each sequence of a pass the rotary embeddings of its own text.

    Models whose embeddings do not depend on a text's length get no hooks.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._modules = []
        for module in _rotary_modules(model):
            if _rotated(module, 2) != _rotated(module, _LONGEST):
                self._modules.append(module)
        self._lengths: Sequence[int] | None = None
        self._kinds: dict[int, int] = {}
        self._reset()

    @property
    def depends(self) -> bool:
        """Whether the model's rotary embeddings depend on the length of a text."""
        return bool(self._modules)

    def kind(self, length: int) -> int:
        """A number that texts share whose rotary embeddings are the same; 0 where these depend on
        no length."""
        if not self._modules:
            return 0
        if length not in self._kinds:
            rotated = b"".join(_rotated(module, length) for module in self._modules)
            self._kinds[length] = int.from_bytes(blake2b(rotated, digest_size=7).digest())
        return self._kinds[length]

    def reads_again(self, length: int) -> bool:
        """Whether `generate` reads a text again, without a cache, when it reaches this number of
        tokens."""
        return self.kind(length) != self.kind(length - 1) and drops_cache(self._model, length)

    def install(self, stack: ExitStack) -> None:
        """Register the hooks until the stack is closed."""
        for module in self._modules:
            hook = module.register_forward_hook(self._after_rotary, with_kwargs=True)
            stack.callback(hook.remove)
        stack.callback(self._reset)
        stack.callback(self.expect, None)

    def expect(self, lengths: Sequence[int] | None) -> None:
        """Set the number of tokens of the text to which each sequence of the next pass belongs.

        One number is that of all sequences. None: the pass is computed as transformers computes it.
        """
        self._lengths = lengths

    def _reset(self) -> None:
        """Let the modules forget the longest text so far."""
        for module in self._modules:
            for layer_type in _layer_types(module):
                _forget(module, layer_type)

    def _after_rotary(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        """The output of a rotary module, with each sequence's embeddings from a pass over texts of
        its own kind."""
        if self._lengths is None:
            return output
        inputs = layer_inputs(module, args, kwargs)
        position_BS = inputs["position_ids"]
        if position_BS.dim() == 3:  # [axes, B, S] of an image-and-text model: equal in a text
            position_BS = position_BS[0]
        rows_of: dict[int, list[int]] = {}
        """The rows whose texts are of a kind."""
        for row, length in enumerate(self._lengths):
            rows_of.setdefault(self.kind(length), []).append(row)
        if len(rows_of) == 1:
            return _embedded(module, inputs, position_BS, max(self._lengths))

        position_BS = position_BS.expand(len(self._lengths), -1)
        order: list[int] = []
        parts = []
        for rows in rows_of.values():
            longest = max(self._lengths[row] for row in rows)
            order += rows
            parts.append(_embedded(module, inputs, position_BS[rows], longest))
        place_B = torch.tensor(order).argsort().to(position_BS.device)
        if isinstance(output, Tensor):
            return torch.cat(parts)[place_B]
        return tuple(torch.cat(tensors)[place_B] for tensors in zip(*parts, strict=True))


@contextmanager
def with_own_lengths(model: nn.Module, lengths: Sequence[int]) -> Iterator[None]:
    """Inside the context each sequence of `model(...)` gets the rotary embeddings of a text of its
    length."""
    hooks = RotaryHooks(model)
    with ExitStack() as stack:
        hooks.install(stack)
        hooks.expect(lengths)
        yield


def forget_lengths(model: nn.Module) -> None:
    """Let rotary embeddings that remember the longest text so far forget it."""
    for module in _rotary_modules(model):
        for layer_type in _layer_types(module):
            _forget(module, layer_type)


def _rotary_modules(model: Any) -> list[nn.Module]:
    """The modules that compute rotary embeddings of a text's positions; not those of images."""
    return [module for module in model.get_decoder().modules() if _is_rotary(module)]


def _is_rotary(module: nn.Module) -> bool:
    """Whether a module computes rotary embeddings of positions."""
    buffers = [name for name, _ in module.named_buffers(recurse=False)]
    has_frequencies = any(name.endswith("inv_freq") for name in buffers)
    return has_frequencies and "position_ids" in argument_names(type(module).forward)


def _layer_types(module: nn.Module) -> list[dict[str, str]]:
    """The further arguments of a rotary module: one for each kind of layer where these have
    embeddings of their own."""
    rope_type = getattr(module, "rope_type", None)
    if isinstance(rope_type, dict):
        return [{"layer_type": layer_type} for layer_type in rope_type]
    return [{}]


def _rotated(module: nn.Module, length: int) -> bytes:
    """The embedding of one position in a text of this length."""
    device = _device(module)
    x = torch.zeros(1, 1, 1, device=device)
    position_BS = torch.full((1, 1), _PROBED, device=device)
    rotated = b""
    for layer_type in _layer_types(module):
        embedded = _embedded(module, {"x": x, **layer_type}, position_BS, max(length, _PROBED + 1))
        tensors = [embedded] if isinstance(embedded, Tensor) else embedded
        for tensor in tensors:
            rotated += tensor.detach().cpu().numpy().tobytes()
    return rotated


def _embedded(module: nn.Module, inputs: dict[str, Any], position_BS: Tensor, length: int) -> Any:
    """The module's output for these positions of texts of this length."""
    x, *_ = inputs.values()
    layer_type = {name: value for name, value in inputs.items() if name == "layer_type"}
    _forget(module, layer_type)
    last_B1 = torch.full_like(position_BS[:, :1], length - 1)
    # later positions are padding
    position_BS = torch.cat([position_BS.clamp(max=length - 1), last_B1], dim=1)
    output = module.forward(x, position_BS, **layer_type)
    if isinstance(output, Tensor):
        return output[:, :-1]
    return tuple(tensor[:, :-1] for tensor in output)


def _forget(module: nn.Module, layer_type: dict[str, str]) -> None:
    """A text of one token resets an embedding that remembers the longest text so far."""
    device = _device(module)
    position_BS = torch.zeros(1, 1, dtype=torch.long, device=device)
    module.forward(torch.zeros(1, 1, 1, device=device), position_BS, **layer_type)


def _device(module: nn.Module) -> torch.device:
    """The device of a rotary module's frequencies."""
    return next(
        tensor.device for name, tensor in module.named_buffers() if name.endswith("inv_freq")
    )
