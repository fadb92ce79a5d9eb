"""RoE on the embedded model: n noisy routings of every token, averaged.

    python examples/roe.py

Takes seconds, and writes to outputs/. The same script again returns what is stored.
"""

from moe_lab.cli.main import main

SETTINGS = ["model=tiny", "task=toy_choice", "limit=40", "method.n=8"]

# %% Eight routings of each token at three temperatures.
# At 0 all eight are the base model's: the null row.
print("RoE with n=8 at temperatures 0, 0.5 and 2, next to the base model:\n")
if code := main(["-m", "method=roe", "method.temperature=0,0.5,2", *SETTINGS]):
    raise SystemExit(code)

# %%
print("""
What to look at:
- changed: the share of noisy routing decisions that take other experts. It grows with the
  temperature; at 0 no decision is noisy.
- flips: answers that became right (+) and wrong (-). At temperature 0 there are none in float32; in
  bfloat16 there may be some, by rounding alone.
- the interval of the difference: 40 questions tell little. `untuned` says that nobody chose these
  temperatures on held-out documents; `tuning=tpe` does.""")
