from __future__ import annotations

import pytest

from hvdtrain import errors

# Kind, the built-in kind that callers may catch instead, and the exit code of the job.
KINDS = [
    (errors.ConfigError, ValueError, 2),
    (errors.DataError, ValueError, 2),
    (errors.AdapterError, RuntimeError, 2),
    (errors.RankError, RuntimeError, 2),
    (errors.CheckpointError, RuntimeError, 2),
    (errors.StallError, RuntimeError, 3),
    (errors.ElsewhereError, RuntimeError, 1),
    (errors.StoppedError, RuntimeError, 1),
    (errors.NonFiniteError, ArithmeticError, 4),
    (errors.ReplicaError, RuntimeError, 5),
]


@pytest.mark.parametrize(("kind", "builtin", "exit_code"), KINDS)
def test_kind_is_caught_by_base_and_builtin_and_knows_its_exit_code(kind, builtin, exit_code):
    error = kind("where: rule, got 0.")
    assert isinstance(error, errors.HvdTrainError)
    assert isinstance(error, builtin)
    assert str(error) == "where: rule, got 0."
    assert error.exit_code == exit_code


def test_every_kind_is_listed_here():
    defined = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.HvdTrainError)
    }
    assert defined == {errors.HvdTrainError, *(kind for kind, _, _ in KINDS)}


def test_base_exits_with_1():
    assert errors.HvdTrainError("x").exit_code == 1


def test_is_agreed_on_one_error_leaves_the_others_alone():
    agreed = errors.DataError("x")
    agreed.is_agreed = True
    assert (agreed.is_agreed, errors.DataError("x").is_agreed) == (True, False)


def test_stopped_error_keeps_the_exit_code_of_its_signal():
    error = errors.StoppedError("fit: stopped.", 143)
    assert (str(error), error.exit_code, errors.StoppedError("x").exit_code) == ("fit: stopped.", 143, 1)


def test_replica_error_is_a_rank_error():
    assert issubclass(errors.ReplicaError, errors.RankError)
