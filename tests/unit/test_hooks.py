from __future__ import annotations

import inspect

import pytest

from hvdtrain.hooks import Hooks, Signature
from hvdtrain.trainer import Trainer

HOOKS = [
    "start",
    "prepare",
    "broadcast_state",
    "make_batch",
    "train_step",
    "is_finite",
    "average_statistics",
    "eval_step",
    "export_state",
    "import_state",
    "stop",
]


def test_hooks_are_these_in_the_order_of_the_loop():
    assert [name for name in vars(Hooks) if not name.startswith("_")] == HOOKS
    assert Hooks.__abstractmethods__ == set(HOOKS)


def test_trainer_adds_no_hook_and_fills_none():
    public = {name for name, value in vars(Trainer).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert public == {"fit", "request_stop"}
    assert Trainer.__abstractmethods__ == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_hook_says_what_holds_after_the_call(name):
    first = inspect.getdoc(getattr(Hooks, name)).splitlines()[0]
    assert first.startswith(("After this call ", "Return ")), first


def test_signature_facts_hold_one_entry_per_tensor_and_table():
    signature = Signature({"w": ((2, 3), "float32")}, ("loss", "accuracy"), ("dropout",), {"lookup": "d1"})
    assert signature.facts() == {
        "metrics": ("loss", "accuracy"),
        "notes": ("dropout",),
        "tensor w": ((2, 3), "float32"),
        "table of layer lookup": "d1",
    }
