"""MoE-Bench's freezing schedules on the embedded model: train everything, then freeze the routers.

    python examples/finetune_freeze.py

Takes seconds, and writes to outputs/. The same script again returns what is stored.
"""

import json
from pathlib import Path

from moe_lab.cli.main import main

SETTINGS = [
    "model=tiny",
    "task=toy_choice",
    "limit=40",
    "method.dataset_size=48",
    "method.validation_size=8",
]

# %% Nothing and then the routers frozen (N→R).
# Full fine-tuning (N→N), with which it is compared, is trained first.
print("12 steps of fine-tuning, the routers frozen in the second half:\n")
schedule = ["method=finetune-freeze", "method.schedule=none-router", "method.max_steps=12"]
if code := main([*schedule, *SETTINGS]):
    raise SystemExit(code)

# %% What each training says of itself.
for file in sorted(Path("outputs/models").glob("tiny-finetune-freeze-*/training.json")):
    training = json.loads(file.read_text(encoding="utf-8"))
    print(
        f"{file}: {training['schedule']}, "
        f"loss {training['first_loss']:.3f} -> {training['last_loss']:.3f}"
    )
print("""
What to look at:
- two comparisons: with the model before (base), and with full fine-tuning by the same recipe.
- training.json: what was frozen in each phase, the bytes that gradients and moments took, how the
  loss went.
- outputs/models/.../model/: an ordinary Hugging Face folder. `method=base model.path=<it>`
  evaluates it again.
- 12 steps change hardly anything. docs/moe_bench.md has all nine schedules after 250 steps.""")
