"""Tracebacks that begin in the person's own code."""

from __future__ import annotations

import json

import pytest

from hvdtrain import user_frames
from hvdtrain.job import load_job

JOB = """
import json
import hvdtrain
config = hvdtrain.TrainConfig()


def train_data():
    raise LookupError("no such row")


def parse():
    return json.loads("{")


def chained():
    try:
        parse()
    except ValueError as error:
        raise RuntimeError("bad file") from error
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return load_job(path)


def in_the_package(body):
    """Return a function ``call(job)`` whose frame counts as one of this package."""
    space = {}
    exec(compile(f"def call(job):\n    {body}\n", user_frames.__file__, "exec"), space)  # noqa: S102  # a frame of this file
    return space["call"]


def told_of(body, job):
    """Return what is told of the error that a frame of the package meets; the frame of this test is left out."""
    try:
        in_the_package(body)(job)
    except Exception as error:
        return user_frames.told(error.with_traceback(error.__traceback__.tb_next))
    raise AssertionError("nothing was raised")


def test_frames_of_the_package_above_the_job_are_left_out(job):
    told = told_of("job.required('train_data')()", job)
    assert told.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{job.path}", line 8, in train_data',
    ]


def test_frames_below_the_job_stay_whoever_wrote_them(job):
    told = told_of("job.required('parse')()", job)
    assert f'File "{job.path}", line 12, in parse' in told.splitlines()[1]
    assert json.__file__ in told


def test_causes_are_told_from_the_job_on_too(job):
    told = told_of("job.required('chained')()", job)
    assert "The above exception was the direct cause" in told
    assert "in call" not in told
    assert told.rstrip().endswith("RuntimeError: bad file")


def test_error_without_a_frame_of_the_job_is_told_whole(job):
    told = told_of("raise KeyError('inside')", job)
    assert "in call" in told
    assert told.endswith("KeyError: 'inside'\n")


def test_every_frame_is_told_on_request(job, monkeypatch):
    monkeypatch.setenv("HVDTRAIN_TRACEBACK", "1")
    told = told_of("job.required('train_data')()", job)
    assert "in call" in told.splitlines()[1]
    assert told.endswith("LookupError: no such row\n")
