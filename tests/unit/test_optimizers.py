from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.optimizers import define
from tests.harness.requirements import skip_or_fail

RATES = [0.1, 0.05, 0.2, 0.01, 0.3]
START = [1.0, -2.0, 0.5]
GRADIENTS = [[0.3, -0.1, 2.0], [0.2, 0.4, -1.0], [0.0, 0.0, 0.0], [-0.5, 0.1, 0.7], [1e-4, -3.0, 0.2]]

# TrainConfig's settings, and the same for torch.optim's class of that name.
OPTIMIZERS = [
    ({"optimizer": "sgd"}, "SGD", {}),
    ({"optimizer": "sgd", "weight_decay": 0.1}, "SGD", {"weight_decay": 0.1}),
    ({"optimizer": "sgd", "momentum": 0.9}, "SGD", {"momentum": 0.9}),
    (
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
        "SGD",
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
    (
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        "SGD",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    ({"optimizer": "adam"}, "Adam", {}),
    (
        {"optimizer": "adam", "betas": (0.8, 0.95), "epsilon": 1e-3, "weight_decay": 0.1},
        "Adam",
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
    ({"optimizer": "adamw"}, "AdamW", {"weight_decay": 0.0}),
    (
        {"optimizer": "adamw", "betas": (0.8, 0.95), "epsilon": 1e-3, "weight_decay": 0.1},
        "AdamW",
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
]

# One process for all cases, because importing torch takes seconds and must not happen in this one.
TORCH = """
import json, sys, torch
start, gradients, rates, cases = json.loads(sys.argv[1])
answers = []
for name, options in cases:
    w = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, name)([w], lr=rates[0], **options)
    steps = []
    for rate, gradient in zip(rates, gradients):
        optimizer.param_groups[0]["lr"] = rate
        w.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        steps.append(w.detach().tolist())
    slots = {k: v.tolist() for k, v in optimizer.state[w].items() if torch.is_tensor(v) and v.shape == w.shape}
    answers.append([steps, slots])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def torch_answers():
    if find_spec("torch") is None:
        skip_or_fail("torch", "torch is not usable here: the package torch is not installed")
    told = json.dumps([START, GRADIENTS, RATES, [[name, options] for _, name, options in OPTIMIZERS]])
    command = [sys.executable, "-W", "ignore", "-c", TORCH, told]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def steps_of(settings, start=START, gradients=GRADIENTS, rates=RATES):
    """Return the weights after each update, and the slots at the end."""
    config = TrainConfig(**settings)
    definition = define(config)
    w = np.array(start)
    slots = {name: np.zeros_like(w) for name in definition.slots}
    steps = []
    for t, (rate, gradient) in enumerate(zip(rates, gradients, strict=True), 1):
        w = definition.update(config, w, np.array(gradient), slots, rate, t)
        steps.append(w.tolist())
    return steps, slots


@pytest.mark.parametrize("case", range(len(OPTIMIZERS)))
def test_five_updates_with_changing_rates_are_torchs(case, torch_answers):
    steps, slots = steps_of(OPTIMIZERS[case][0])
    torch_steps, torch_slots = torch_answers[case]
    np.testing.assert_allclose(steps, torch_steps, rtol=0, atol=1e-6)
    assert set(torch_slots) == set(slots)
    for name, values in slots.items():
        np.testing.assert_allclose(values, torch_slots[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "name", "slots"),
    [
        ({"optimizer": "sgd"}, "sgd", ()),
        ({"optimizer": "sgd", "momentum": 0.9}, "sgd", ("momentum_buffer",)),
        ({"optimizer": "adam"}, "adam", ("exp_avg", "exp_avg_sq")),
        ({"optimizer": "adamw"}, "adamw", ("exp_avg", "exp_avg_sq")),
        ({"optimizer": "lamb"}, "lamb", ("exp_avg", "exp_avg_sq")),
    ],
)
def test_define_names_the_slots(settings, name, slots):
    definition = define(TrainConfig(**settings))
    assert (definition.name, definition.slots) == (name, slots)


def test_sgd_keeps_the_rate_out_of_the_momentum_buffer():
    steps, slots = steps_of({"optimizer": "sgd", "momentum": 0.5}, [0.0], [[1.0], [1.0]], [0.1, 0.2])
    assert steps == [[pytest.approx(-0.1)], [pytest.approx(-0.1 - 0.2 * 1.5)]]
    assert slots["momentum_buffer"].tolist() == [1.5]


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_first_update_of_adam_is_the_rate(optimizer):
    steps, _ = steps_of({"optimizer": optimizer}, [0.0, 0.0], [[1.0, -3.0]], [0.1])
    assert steps == [[pytest.approx(-0.1, abs=1e-8), pytest.approx(0.1, abs=1e-8)]]


def test_update_leaves_the_arrays_that_it_was_given():
    config = TrainConfig(optimizer="adamw", weight_decay=0.1)
    w, g = np.array([1.0, 2.0]), np.array([0.5, 0.5])
    slots = {"exp_avg": np.zeros(2), "exp_avg_sq": np.zeros(2)}
    define(config).update(config, w, g, slots, 0.1, 1)
    assert (w.tolist(), g.tolist()) == ([1.0, 2.0], [0.5, 0.5])


# ---------------------------------------------------------------- lamb
def test_first_update_of_lamb_has_the_length_of_rate_times_weights():
    # The first direction is sign(g) = (1, -1) of length sqrt 2; the weights have length 5.
    steps, _ = steps_of({"optimizer": "lamb"}, [3.0, 4.0], [[2.0, -0.5]], [0.1])
    trust = 5 / math.sqrt(2)
    assert steps == [[pytest.approx(3 - 0.1 * trust), pytest.approx(4 + 0.1 * trust)]]


def test_lamb_adds_decay_to_the_direction():
    # Direction (1, -1) + 0.5 (3, 4) = (2.5, 1).
    steps, _ = steps_of({"optimizer": "lamb", "weight_decay": 0.5}, [3.0, 4.0], [[2.0, -0.5]], [0.1])
    trust = 5 / math.hypot(2.5, 1)
    assert steps == [[pytest.approx(3 - 0.1 * trust * 2.5), pytest.approx(4 - 0.1 * trust * 1)]]


def test_lamb_of_zero_weights_is_adam():
    steps, _ = steps_of({"optimizer": "lamb"}, [0.0, 0.0], [[2.0, -0.5]], [0.1])
    assert steps == [[pytest.approx(-0.1), pytest.approx(0.1)]]


def test_lamb_of_zero_gradient_moves_nothing():
    assert steps_of({"optimizer": "lamb"}, [3.0, 4.0], [[0.0, 0.0]], [0.1])[0] == [[3.0, 4.0]]
