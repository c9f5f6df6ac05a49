"""Tests of hvdtrain. A package, so that a test can say ``from tests.harness import run_ranks``."""
