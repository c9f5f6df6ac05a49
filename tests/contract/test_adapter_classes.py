"""The two adapters read side by side: the same public methods, in the same order, and none beyond the hooks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hvdtrain"
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


def _class_body(file, name):
    module = ast.parse((PACKAGE / file).read_text())
    return next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name).body


def _public_methods(body):
    return [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("hooks.py", "Hooks"),
        ("torch_adapter/trainer.py", "TorchTrainer"),
        ("tensorflow_adapter/trainer.py", "TensorFlowTrainer"),
    ],
)
def test_public_methods_are_the_hooks_in_their_order(file, name):
    assert [method.name for method in _public_methods(_class_body(file, name))] == HOOKS


@pytest.mark.parametrize(
    ("file", "name"),
    [("torch_adapter/trainer.py", "TorchTrainer"), ("tensorflow_adapter/trainer.py", "TensorFlowTrainer")],
)
def test_hooks_keep_the_arguments_and_results_of_the_contract(file, name):
    contract = {method.name: method for method in _public_methods(_class_body("hooks.py", "Hooks"))}
    for method in _public_methods(_class_body(file, name)):
        promised = contract[method.name]
        assert ast.dump(method.args) == ast.dump(promised.args), method.name
        assert ast.dump(method.returns) == ast.dump(promised.returns), method.name


@pytest.mark.parametrize("file", ["torch_adapter/trainer.py", "tensorflow_adapter/trainer.py"])
def test_adapters_neither_print_nor_write_files(file):
    called = {
        node.func.id
        for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called.isdisjoint({"print", "open"})
