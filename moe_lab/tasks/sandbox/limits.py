"""What a caged program may use."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, bytes and counts. The defaults let the reference solutions of HumanEval+ pass with room to spare."""

    wall_seconds: float = 60.0
    """From outside, against sleeping and waiting. Long, so that a busy machine does not change a score."""
    cpu_seconds: int = 20
    """Per process; what ends an endless loop. HumanEval+'s slowest reference solution takes about 6."""
    memory: int = 1024 * MIB
    """Address space per process: nothing limits the sum of a program's processes."""
    processes: int = 5
    """Processes and threads at a time, those of the cage itself included: a program has two to four of them."""
    file_size: int = 8 * MIB
    """Of one file."""
    folder_size: int = 32 * MIB
    """Of the program's own folder, which is in memory and gone when it ends."""
    open_files: int = 64

    def as_dict(self) -> dict[str, float]:
        return asdict(self)
