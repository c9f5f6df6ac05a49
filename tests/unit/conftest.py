"""Fixtures of tests that fit in this very process."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def after_fit(monkeypatch):
    """Take back what fit leaves: a variable that MPI reads when it starts, and the hook for uncaught errors."""
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
