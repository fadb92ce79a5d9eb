"""C3PO on the embedded model: each question's routing weights, optimized by its neighbours.

    python examples/c3po.py

Takes seconds, and writes to outputs/. The same script again returns what is stored.
"""

from moe_lab.cli.main import main

SETTINGS = ["model=tiny", "task=toy_choice", "limit=24", "method.reference_size=40"]

# %% Gradient descent on the loss of the three nearest references,
# and on the loss of the question's own right answer.
print("C3PO by gradient descent on neighbours (ngd), and its upper bound (oracle):\n")
if code := main(["-m", "method=c3po", "method.optimizer=ngd,oracle", *SETTINGS]):
    raise SystemExit(code)

# %%
print("""
What to look at:
- upper-bound: the oracle optimizes on the right answer of the test question. It says what other
  routing weights could reach, and is no result of a method.
- the gap between ngd and the oracle: what the neighbours did not tell.
- outputs/references/: the reference set. It is made once, of questions that the base model answers
  correctly.
- outputs/report.html: the answers that changed, with their prompts.""")
