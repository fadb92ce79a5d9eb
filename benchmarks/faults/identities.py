"""Models that differ from another one in a single number of their weights: each must have another identity."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from random import Random

from benchmarks.faults.model_files import WEIGHTS
from benchmarks.faults.models import FAMILIES, make_model


class Identities:
    """Attempt n changes one number of one tensor of a family's model, and changes it back afterwards."""

    name = "identities"

    def __init__(self, work: Path, seed: int, count: int):
        from moe_lab.models.identity import WHOLE_BYTES, folder_content

        self.seed, self.attempts = seed, count
        self.seen: dict[tuple, str] = {}
        self.models = {family: make_model(work / f"identity-{family}", family) for family in FAMILIES}
        for family, folder in self.models.items():
            assert (folder / WEIGHTS).stat().st_size > WHOLE_BYTES
            self.seen[tuple(folder_content(folder).items())] = f"{family}, unchanged"

    def attempt(self, number: int) -> list[str]:
        """What is wrong with the identity of attempt `number`."""
        from moe_lab.models.files import read_header
        from moe_lab.models.identity import folder_content

        random = Random(f"{self.seed} identities {number}")
        family = FAMILIES[number % len(FAMILIES)]
        file = self.models[family] / WEIGHTS
        tensors = read_header(file)
        name = random.choice(sorted(tensors))
        begin, end = tensors[name]["data_offsets"]
        element = random.randrange((end - begin) // 4)
        with file.open("r+b") as opened:
            start = 8 + int.from_bytes(opened.read(8), "little") + begin + 4 * element
            before = os.pread(opened.fileno(), 4, start)
            os.pwrite(opened.fileno(), struct.pack("<f", struct.unpack("<f", before)[0] + 0.5), start)
            identity = tuple(folder_content(file.parent).items())
            os.pwrite(opened.fileno(), before, start)
        where = f"{family}, number {element} of {name}"
        other = self.seen.setdefault(identity, where)
        return [] if other == where else [f"{where}: the identity of {other}"]

    def told(self) -> str:
        return f"{self.attempts} changes of one number in {len(FAMILIES)} families"
