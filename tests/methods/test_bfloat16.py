"""Training in bfloat16 by autocast. Broken by experts that compute in float32, by a change of training in float32."""

from copy import deepcopy
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moe_lab.config.schema import ExpertsImplementation
from moe_lab.methods.pretrain.training import train as pretrain
from tests.support import pretrainings
from tests.support.models import small_model
from tests.support.tiers import by_family, first_fast
from tests.support.trainings import train

PRODUCTS = ("_grouped_mm", "mm", "bmm", "addmm", "baddbmm")


class Products(TorchDispatchMode):
    """The dtypes of the factors of all matrix products, by the product's name."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in PRODUCTS:
            self.dtypes.setdefault(name, set()).update(each.dtype for each in args[:2])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("implementation", first_fast(get_args(ExpertsImplementation)))
@pytest.mark.parametrize("family", by_family(("olmoe", "gpt_oss", "deepseek", "mixtral", "qwen3_moe")))
def test_all_products_of_a_step_are_in_bfloat16(family, implementation, tmp_path):
    """Forward and backward, those of the experts among them. Some other families ask for float32 in their routers."""
    model = deepcopy(small_model(family))
    model.set_experts_implementation(implementation)
    with Products() as products:
        train(model, tmp_path, count=2, max_steps=1, dtype="bfloat16")
    assert set().union(*products.dtypes.values()) == {torch.bfloat16}, products.dtypes
    assert ("_grouped_mm" in products.dtypes) == (implementation in ("grouped_mm", "weights_first"))


@pytest.mark.parametrize("router", ("token", "expert"))
def test_all_products_of_a_pre_training_are_in_bfloat16(router, tmp_path):
    with Products() as products:
        trained = pretrain(pretrainings.training_of(tmp_path, steps=1, dtype="bfloat16", router=router))
    assert {own.dtype for own in trained.model.parameters()} == {torch.float32}
    assert set().union(*products.dtypes.values()) == {torch.bfloat16}, products.dtypes


def test_losses_are_near_those_in_float32(tmp_path):
    """Twelve steps at a rate that changes the loss by far more than the bound."""
    told = {
        dtype: train(deepcopy(small_model("olmoe")), tmp_path / dtype, dtype=dtype, count=2, epochs=12)
        for dtype in ("float32", "bfloat16")
    }
    exact, rounded = told.values()
    assert exact["first_loss"] - exact["last_loss"] > 0.5
    for loss in ("first_loss", "last_loss"):
        assert rounded[loss] == pytest.approx(exact[loss], rel=0.02)
