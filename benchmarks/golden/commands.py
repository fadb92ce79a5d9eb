"""The commands of the golden run, by name.

Together they reach every method, way of tuning and mode, the experiments of each paper, and all
that is written. Each starts in a folder of its own with a copy of `inputs/`, and writes to
`outputs/` there.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    line: str
    """What stands after `python -m moe_lab`. A value with `*` is a path: the only one that matches
    it is passed."""
    after: str = ""
    """The command whose outputs this one starts with; empty: none."""

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.line)


C3PO = "method.reference_size=40 method.steps=3"
FINE_TUNING = (
    "method=finetune-freeze method.dataset_size=16 method.validation_size=4 "
    "method.epochs=1 method.max_steps=3"
)
PRETRAINING = (
    "method=pretrain method.dataset_size=40 method.steps=4 method.hidden_size=16 method.heads=2 "
    "method.layers=2 method.active_size=16 method.sequence_length=32 method.validation_rows=2"
)
PERPLEXITY = "task=toy_text limit=3"
CHOICE = "task=toy_choice limit=6"
MATH = "task=toy_math limit=4"
MATH_AND_TEXT = "task=toy_math,toy_text limit=4"
"""Equal answers may hide different logits; a perplexity hides none."""
GRID = "-m method=base,roe,top-k task=toy_choice,toy_text limit=6 seeds=3"
ROE = f"method=roe method.n=4 method.temperature=5 {MATH}"  # so much noise that answers change
NOISY = "method=roe method.n=3 model=tiny-noisy"
HELD_OUT = "tuning.num_samples=4"

COMMANDS = {
    # Help.
    "help": Command("--help"),
    "help-option": Command("--help roe"),
    "help-keys": Command("--help keys"),
    # The base model, and what a user may ask of any evaluation.
    "base-chat": Command(
        f"method=base {MATH} num_fewshot=2 apply_chat_template=true gen_kwargs=temperature=0.7 "
        "system_instruction=Calculate."
    ),
    "base-own-task": Command(
        "method=base task=lm_eval task.name=capitals task.include_path=inputs/tasks samples=[0,2]"
    ),
    "base-expert-metrics": Command(f"method=base metrics=expert {CHOICE}"),
    "base-safety": Command("method=base task=toy_safety limit=3 gen_kwargs=max_gen_toks=8"),
    "families": Command(
        f"-m method=roe method.n=3 method.temperature=1 {CHOICE}"
        " model.path=inputs/models/mixtral,inputs/models/qwen3_moe,inputs/models/deepseek_v2"
    ),
    # RoE.
    "roe": Command(ROE),
    "roe-again": Command(ROE, after="roe"),
    "roe-caches": Command(
        "-m method=roe method.n=3 method.temperature=5 method.cache=clean,standard,none "
        f"{MATH_AND_TEXT}"
    ),
    "roe-prefill": Command(
        "method=roe method.n=3 method.temperature=5 method.cache=standard method.prefill=clean "
        f"{MATH}"
    ),
    "roe-options": Command(
        f"-m {NOISY} method.temperature=4 method.weights=clean,perturbed "
        "method.aggregate=probabilities,logits method.include_clean=true,false "
        f"method.noise=gumbel,antithetic {PERPLEXITY}"
    ),
    "roe-layers": Command(
        f"{NOISY} method.temperature=[1,4,0] method.logit_scale=0.9 {PERPLEXITY}"
    ),
    "roe-votes": Command(
        "method=roe method.n=2 method.temperature=5 task=toy_math limit=2 task.self_consistency=3"
    ),
    "roe-only-answers": Command(
        f"method=roe method.n=2 method.temperature=5 predict_only=true baseline=false {MATH}"
    ),
    # C3PO and its baselines.
    "c3po": Command(f"method=c3po {C3PO} method.trace=true {CHOICE}"),
    "c3po-optimizers": Command(
        f"-m method=c3po {C3PO} method.optimizer=kernel_regression,mode_finding,oracle {CHOICE}"
    ),
    "c3po-equation": Command(
        f"method=c3po {C3PO} method.parameters=weights method.update=gd method.relax=topk "
        "method.kernel=matern method.tokens=last2 method.layers=first2+last3 method.epsilon=0.5 "
        f"{CHOICE}"
    ),
    "c3po-generation": Command(f"-m method=c3po {C3PO} method.persistence=all_new,decay {MATH}"),
    "c3po-baselines": Command(
        f"-m method=icl,soft-prompt,prefix-tuning method.reference_size=40 baseline=false {CHOICE}"
    ),
    # Other ways to route.
    "top": Command(f"-m method=top-p,top-k {CHOICE}"),
    "scmoe": Command(f"-m method=scmoe method.cache=clean,standard {MATH_AND_TEXT}"),
    "c2r": Command(f"method=c2r method.dataset_size=20 {CHOICE}"),
    "steer": Command(f"method=steer method.dataset_size=20 method.deactivate=3 {CHOICE}"),
    "policy": Command(
        f"-m method=policy method.policy=inputs/policy.py:drop_weakest method.scale=0,0.5 {CHOICE}"
    ),
    "policy-fails": Command(
        f"method=policy method.policy=inputs/policy.py:fail baseline=false {CHOICE}"
    ),
    "calibration": Command(f"method=calibration method.logit_scale=0.8 {PERPLEXITY}"),
    # Methods that train.
    "fine-tuning": Command(f"{FINE_TUNING} method.schedule=none-router metrics=expert {CHOICE}"),
    "fine-tuning-phases": Command(
        f"{FINE_TUNING} "
        f"'method.phases=[{{frozen:[router],until:0.5,lr:2e-4}},{{frozen:[],until:1.0}}]' "
        "method.router_lr=1e-3 method.router_aux_loss_coef=0.01 method.partners=6 "
        f"method.activation_checkpointing=true {CHOICE}"
    ),
    "pretraining-routers": Command(
        f"-m {PRETRAINING} method.router=token,expert,word,sentence {CHOICE}"
    ),
    "pretraining-designs": Command(
        f"-m {PRETRAINING} method.backbone=olmoe,deepseek,dense method.tokenizer=train "
        f"method.vocab_size=300 {CHOICE}"
    ),
    "pretraining-losses": Command(
        f"{PRETRAINING} method.backbone=deepseek method.shared_experts=2 method.bias_rate=0.01 "
        f"method.device_loss=0.05 method.devices=2 method.routing_noise=1 {CHOICE}"
    ),
    "pretraining-tiny": Command("method=pretrain-tiny method.steps=2 method.save_steps=1"),
    # Tuning: temperatures of layers, one temperature, the logit scale, a method's settings; each
    # sampler.
    "tuning-tpe": Command(f"{NOISY} tuning=tpe tuning.n_trials=5 {HELD_OUT} seeds=2 {PERPLEXITY}"),
    "tuning-random": Command(
        f"{NOISY} tuning=random tuning.n_trials=4 tuning.logit_scale=true tuning.max_temperature=4 "
        f"{HELD_OUT} seeds=2 tuning.seeds=2 {PERPLEXITY}"
    ),
    "tuning-uniform": Command(
        "method=roe method.n=2 tuning=uniform tuning.max_temperature=2 tuning.step=1 "
        f"tuning.metric=accuracy {HELD_OUT} seeds=1 {CHOICE}"
    ),
    "tuning-scale": Command(f"method=calibration tuning=scale {HELD_OUT} {PERPLEXITY}"),
    "tuning-grid": Command(f"method=top-k tuning=grid {HELD_OUT} {CHOICE}"),
    # Grids, and what is made of stored results.
    "grid": Command(GRID),
    "grid-report": Command(f"{GRID} mode=report", after="grid"),
    "compare": Command(
        "mode=compare a=outputs/runs/tiny-base-toy_math-* b=outputs/runs/tiny-roe-toy_math-*",
        after="roe",
    ),
    "wandb": Command(
        f"{NOISY} tuning=uniform tuning.max_temperature=2 tuning.step=1 {HELD_OUT} seeds=1 "
        f"logger=wandb {PERPLEXITY}"
    ),
    # What needs no weights.
    "plan-run": Command("method=c3po mode=plan task=toy_choice"),
    "plan-grid": Command(f"{GRID} mode=plan", after="base-expert-metrics"),
    "plan-experiment": Command("experiment=roe/figure3,moe_bench/table1 mode=plan"),
    # A table of each paper.
    "experiment-roe": Command(
        "experiment=roe/figure6 limit=4 seeds=1 method.n=2 tuning.max_temperature=2 tuning.step=1 "
        f"{HELD_OUT}"
    ),
    "experiment-c3po": Command(
        "experiment=c3po/table1,c3po/figure8 limit=4 method.reference_size=40"
    ),
    "experiment-moe-bench": Command(
        "experiment=moe_bench/table4 limit=2 seeds=1 method.max_steps=2"
    ),
    # Wrong requests.
    "wrong-option": Command("method=reo"),
    "wrong-key": Command("method=roe method.temprature=1"),
    "wrong-value": Command("method=roe method.n=0"),
    "wrong-task": Command("method=base task=lm_eval task.name=gsm9k"),
    "wrong-file": Command("method=roe method.temperature=missing/best.yaml"),
    "wrong-offline": Command("method=roe mode=prefetch"),
    "wrong-model": Command("method=c3po model.path=missing/model"),
}
