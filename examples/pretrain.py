"""MoE-Bench's designs, trained from scratch.

One router chooses experts for tokens, the other one for words.

    python examples/pretrain.py

Takes seconds, and writes to outputs/. The same script again returns what is stored.
"""

from moe_lab.cli.main import main

DESIGN = [
    "method.experts=8",
    "method.experts_per_token=2",
    "method.hidden_size=32",
    "method.layers=2",
]
TRAINING = [
    "method.dataset_size=300",
    "method.validation_rows=8",
    "method.steps=15",
    "method.save_steps=15",
]
SETTINGS = ["task=toy_choice", "limit=40", *DESIGN, *TRAINING]

# %% Two trainings on the same rows in the same order, and their evaluation.
print("15 steps of two designs with 8 experts, of which 2 are chosen:\n")
if code := main(["-m", "method=pretrain", "method.router=token,word", *SETTINGS]):
    raise SystemExit(code)

# %%
print("""
What to look at:
- the loss on held-out rows, which are the same for both: designs are ranked by it. After 15 steps
  it says nothing.
- accuracy near 0.25 is chance: every question has four answers.
- outputs/models/.../training.json and figures/: the loss curve, and how evenly the experts were
  used.
- docs/pretraining.md: the other routers, losses and backbones. `experiment=moe_bench/table3`
  compares them all.""")
