"""Resource limits of a program in the sandbox."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, bytes and counts. The reference solutions of HumanEval+ stay well below the defaults."""

    wall_seconds: float = 60.0
    """Measured outside, against sleeping and waiting. Long, so that a busy machine does not change a score."""
    cpu_seconds: int = 20
    """Per process; ends an endless loop. The slowest reference solution of HumanEval+ takes about 6."""
    memory: int = 1024 * MIB
    """Address space per process; the sum over a program's processes is not limited."""
    processes: int = 5
    """Processes and threads at a time, including the sandbox's own; a program has two to four of them."""
    file_size: int = 8 * MIB
    """Of one file."""
    folder_size: int = 32 * MIB
    """Of the program's own folder, which is in memory and removed at its end."""
    open_files: int = 64

    def as_dict(self) -> dict[str, float]:
        return asdict(self)
