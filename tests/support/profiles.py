"""A profile of a study, for methods that take one."""

from moe_lab.methods.profile import Profile

PROFILE = Profile(
    model="tiny",
    task="toy_math",
    study="tiny-toy_math-perplexity-0123",
    tuning="tpe",
    metric="perplexity",
    n=8,
    trials=50,
    trial=31,
    score=1.25,
    untuned_score=1.5,
    split="validation",
    samples={"toy_math": [1, 5]},
    documents=["00ff00ff00ff00ff", "1234567890123456"],
    temperature=[0.0, 0.1234567890123, 0.0, 0.4],
)
