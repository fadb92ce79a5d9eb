"""A stand-in for a GPU: a device of torch whose tensors are computed on the CPU,
and treated as those of a GPU.

`import tests.support.accelerator` registers the device "accel" with torch (by the Python back
end for PrivateUse1). An `AccelTensor` holds a tensor of the CPU. As on a GPU, it is not mixed
with tensors of the CPU, except for numbers without dimensions and index tensors, and numpy does
not read it. Whatever makes the host wait for values of the device is counted (`host_reads`),
with the line of this package that asked for them.

`metered` counts the bytes of its storages that are alive, and `memory` sets its size:
more raises torch.OutOfMemoryError. Scaled-dot-product attention is one operation, as on a GPU,
whose kernels keep no scores.

It shows where code forgets a device, reads it too often or keeps too much. It shows nothing about
speed, kernels or rounding.
"""

import gc
import traceback
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import (
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

NAME = "accel"
_aten = torch.ops.aten
_READS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.equal.default,
    _aten.masked_select.default,
}
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_NEW = {_aten._to_copy.default, _aten.copy_.default}
"""Operations that may have tensors of both devices."""
_reads: Counter[str] | None = None
_with_uploads = False


class _Memory:
    """Bytes of the storages that tensors of the device hold."""

    size = 2**31
    live = peak = 0

    def __init__(self) -> None:
        self._holders: Counter[int] = Counter()

    def hold(self, tensor: "AccelTensor") -> None:
        storage = tensor.on_cpu.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        if not self._holders[key]:
            if self.live + size > self.size:
                raise torch.OutOfMemoryError(
                    f"{NAME} out of memory. Tried to allocate {size} bytes."
                )
            self.live += size
            self.peak = max(self.peak, self.live)
        self._holders[key] += 1
        weakref.finalize(tensor, self._release, key, size).atexit = False

    def _release(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self.live -= size


_memory = _Memory()


@contextmanager
def metered() -> Iterator[_Memory]:
    """Inside the context, `peak` counts from the bytes that are alive now."""
    gc.collect()
    _memory.peak = _memory.live
    yield _memory


@contextmanager
def memory(size: int) -> Iterator[None]:
    """Inside the context the device has this many bytes."""
    before, _memory.size = _memory.size, size
    try:
        yield
    finally:
        _memory.size = before


class _Module:
    """What torch asks of the module of a device, `torch.accel`."""

    is_available = is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    synchronize = empty_cache = staticmethod(lambda device=None: None)
    mem_get_info = staticmethod(lambda device=None: (_memory.size - _memory.live, _memory.size))
    memory_allocated = staticmethod(lambda device=None: _memory.live)
    max_memory_allocated = staticmethod(lambda device=None: _memory.peak)
    reset_peak_memory_stats = staticmethod(
        lambda device=None: setattr(_memory, "peak", _memory.live)
    )
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    # the generator is the CPU's, which torch seeds
    manual_seed = manual_seed_all = staticmethod(lambda seed: None)


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        # libraries that look for an accelerator do not find it: it is used where it is named
        return False


torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment, method-assign]
_setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hook())
DEVICE = torch.device(NAME, 0)


class AccelTensor(Tensor):
    """A tensor on the device, `on_cpu` elsewhere."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor, requires_grad: bool = False) -> "AccelTensor":
        inside = torch.is_inference_mode_enabled()
        # torch refuses views of those made in it
        with torch.inference_mode(False) if inside else nullcontext():
            made = Tensor._make_wrapper_subclass(
                cls,
                on_cpu.size(),
                strides=on_cpu.stride(),
                storage_offset=on_cpu.storage_offset(),
                dtype=on_cpu.dtype,
                device=DEVICE,
                requires_grad=requires_grad,
            )
        made.on_cpu = on_cpu
        _memory.hold(made)
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():  # results stay on the device that they are on
            return func(*args, **(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"accel({self.on_cpu!r})"

    def tolist(self) -> Any:  # type: ignore[override]
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first."
        )


class _Attention(torch.autograd.Function):
    """One operation. Like kernels of a GPU, forward keeps the inputs, the output
    and a number for each query."""

    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]
    ) -> Any:
        ctx.options = options
        output = AccelTensor(_on_the_cpu(query, key, value, mask, options))
        ctx.save_for_backward(query, key, value, mask, output, output[..., 0].float())
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, mask, *_ = ctx.saved_tensors
        leaves = [leaf.on_cpu.detach().requires_grad_() for leaf in (query, key, value)]
        with torch.enable_grad():
            output = _on_the_cpu(*leaves, mask, ctx.options)
        return *map(AccelTensor, torch.autograd.grad(output, leaves, gradient.on_cpu)), None, None


def _on_the_cpu(query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> Tensor:
    query, key, value, mask = (
        getattr(tensor, "on_cpu", tensor) for tensor in (query, key, value, mask)
    )
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *arguments: Any, **options: Any
) -> Any:
    names = ("dropout_p", "is_causal")
    return _Attention.apply(
        query, key, value, attn_mask, dict(zip(names, arguments, strict=False)) | options
    )


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation of torch on the CPU's tensors.

    The result is on the device unless another device is requested.
    """
    if _is_composite(op):
        # inference mode hands on what is made of other operations
        return op.decompose(*args, **kwargs)
    tensors: list[Tensor] = []
    arguments = _on_cpu(args, tensors)
    options = {key: _on_cpu(tensor, tensors) for key, tensor in kwargs.items()}
    _check_devices(op, args, tensors)
    target = kwargs.get("device")
    leaving = target is not None and torch.device(target).type == "cpu"
    into_cpu = op is _aten.copy_.default and not isinstance(args[0], AccelTensor)
    if (
        leaving
        or into_cpu
        or op in _READS
        or _has_mask(op, args)
        or (_with_uploads and _uploads(op, tensors))
    ):
        _count()
    if op is _aten.histc.default:  # of integers it exists on GPUs alone
        output = op(arguments[0].float(), *arguments[1:], **options).to(arguments[0].dtype)
    else:
        output = op(*arguments, **options)
    if leaving or into_cpu:
        return args[0] if into_cpu else output
    return _on_device(
        output, {id(tensor.on_cpu): tensor for tensor in tensors if isinstance(tensor, AccelTensor)}
    )


@cache
def _is_composite(op: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    )


def _check_devices(op: Any, args: Any, tensors: list[Tensor]) -> None:
    elsewhere = [leaf for leaf in tensors if not isinstance(leaf, AccelTensor) and leaf.dim()]
    if op in _INDEXED and isinstance(args[0], AccelTensor):
        index_ids = {id(index) for index in args[1]}
        elsewhere = [leaf for leaf in elsewhere if id(leaf) not in index_ids]
    if elsewhere and len(elsewhere) < len(tensors) and op not in _NEW:
        raise RuntimeError(
            f"{op}: Expected all tensors to be on the same device, not on {NAME}:0 and cpu."
        )


def _has_mask(op: Any, args: Any) -> bool:
    """Whether the size of the result depends on values."""
    return op in _INDEXED and any(
        index is not None and index.dtype is torch.bool for index in args[1]
    )


def _uploads(op: Any, tensors: list[Tensor]) -> bool:
    """Whether values of the CPU are copied to the device.

    A number without dimensions is copied in operations like `where`.
    """
    elsewhere = [leaf for leaf in tensors if not isinstance(leaf, AccelTensor)]
    return bool(elsewhere) and (op in _NEW or len(elsewhere) < len(tensors))


def _on_cpu(value: Any, tensors: list[Tensor]) -> Any:
    """`value` with the CPU's tensors. All its tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.on_cpu if isinstance(value, AccelTensor) else value
    if isinstance(value, list | tuple):
        return [_on_cpu(item, tensors) for item in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _on_device(output: Any, tensors: dict[int, AccelTensor]) -> Any:
    if isinstance(output, list | tuple):
        return type(output)(_on_device(item, tensors) for item in output)
    if not isinstance(output, Tensor):
        return output
    return tensors[id(output)] if id(output) in tensors else AccelTensor(output)


def _count() -> None:
    if _reads is None:
        return
    frames = [frame for frame in traceback.extract_stack() if "/moe_lab/" in frame.filename]
    caller_frame = frames[-1] if frames else traceback.extract_stack()[0]
    file = caller_frame.filename.rpartition("/moe_lab/")[2]
    _reads[f"{file}:{caller_frame.lineno} {caller_frame.line}"] += 1


@contextmanager
def host_reads(uploads: bool = False) -> Iterator[Counter[str]]:
    """Inside the context, the counter has the reads of the device by the host,
    by the line that asks for them.

    With `uploads` it has the copies of values to the device, too: a graph
    of a GPU can record neither.
    """
    global _reads, _with_uploads
    before = _reads
    _reads = Counter()
    _with_uploads = uploads
    try:
        yield _reads
    finally:
        _reads = before
        _with_uploads = False


# tensors that torch creates without one of the device at hand
_library = torch.library.Library("aten", "IMPL")
for _name, _op in {
    "empty.memory_format": _aten.empty.memory_format,
    "empty_strided": _aten.empty_strided.default,
    "copy_": _aten.copy_.default,
}.items():
    _library.impl(_name, lambda *args, _op=_op, **kwargs: _run(_op, args, kwargs), "PrivateUse1")
