from __future__ import annotations

import json

import pytest

from hvdtrain.config import TrainConfig
from hvdtrain.forecast.communication import Network
from hvdtrain.forecast.dry_run import DryRequest, DryRun
from hvdtrain.forecast.outlook import Outlook, as_json, dry_requests, make_setup
from hvdtrain.forecast.picture import draw_plan
from hvdtrain.forecast.text import advice_table, replica_lines, scale_table, verdict_lines
from hvdtrain.model_size import ModelSize

MODEL = ModelSize(num_parameters=250_000, num_tensors=4, weights=10**6, gradients=10**6, slots=2 * 10**6)
MIB = 2**20


def run(processes, share, ms, *, batch=None, mib=0, model=MODEL, steps=()):
    batch = batch or share
    request = DryRequest(processes, share, batch, -(-share // batch))
    return DryRun(request, steps or (ms / 1e3,) * 3, 0.9 * ms / 1e3, mib * MIB, model)


def outlook(config=None, *, runs=(), network=None, limit=None, local=2):
    config = config or TrainConfig(global_batch_size=64)
    # 2 ms and 1 ms a sample; 100 MiB and 1 MiB a sample
    runs = runs or (run(1, 64, 66.0, mib=164), run(2, 32, 34.0, mib=132), run(2, 16, 18.0, mib=116))
    return Outlook("torch", config, tuple(runs), network or Network(1e9, 1e-4, is_measured=False), limit, local)


def setups(sizes, local=2, **settings):
    config = TrainConfig(**{"global_batch_size": 64, **settings})
    return [make_setup(config, size, local) for size in sizes]


# ---------------------------------------------------------------- what is tried
def test_every_number_of_ranks_is_tried_with_its_own_share_and_company():
    assert dry_requests(setups([1, 2, 4])) == [
        DryRequest(1, 64, 64, 1),
        DryRequest(2, 32, 32, 1),
        DryRequest(2, 16, 16, 1),
    ]


def test_of_many_the_first_the_last_and_one_between_are_tried():
    tried = dry_requests(setups([1, 2, 4, 8, 16, 32]))
    assert [request.share for request in tried] == [64, 8, 2]


@pytest.mark.parametrize(
    ("sizes", "settings", "batches"),
    [
        ([2], {}, [32, 16]),  # a line needs two points
        ([1, 2], {"batch_size": 8}, [8, 8, 4]),
        ([64], {}, [1, 2]),
        ([1, 2], {}, [64, 32]),
    ],
)
def test_there_are_always_two_sizes_of_a_pass(sizes, settings, batches):
    assert [request.batch_size for request in dry_requests(setups(sizes, **settings))] == batches


def test_passes_are_those_of_the_largest_share():
    (first, _) = dry_requests(setups([3], batch_size=10))
    assert first == DryRequest(2, 22, 10, 3)  # 64 over 3 is 22 at most, and 10 + 10 + 2


# ---------------------------------------------------------------- the forecast
@pytest.mark.parametrize(("num_ranks", "seconds"), [(1, 3.0), (2, 3.828), (3, 4.175), (1000, 4.997)])
def test_a_step_waits_for_the_slowest_of_its_ranks(num_ranks, seconds):
    # The quantile 0.5 ** (1 / N) of five steps: 0.707 of the way for two ranks.
    made = run(1, 8, 0.0, steps=(1.0, 2.0, 3.0, 4.0, 5.0))
    assert made.slowest_of(num_ranks) == pytest.approx(seconds, abs=5e-4)


def test_row_of_a_number_that_was_tried():
    row = outlook().row(2)
    assert row.is_measured
    assert row.compute == pytest.approx(0.034)
    # 2 messages of 0.5 MB at 1 GB/s, and 2 of 0.1 ms each
    assert row.communication == row.exposed == pytest.approx(1.2e-3)
    assert row.overlapped == 0.0
    assert row.step == pytest.approx(0.0352)
    assert row.samples_per_s == pytest.approx(64 / 0.0352)
    assert row.memory == 132 * MIB + MIB // 2  # and the buffer in which small gradients are sent
    assert row.sharding_saves == 10**6


def test_row_of_another_number_lies_on_the_line():
    row = outlook().row(8)
    assert not row.is_measured
    assert row.compute == pytest.approx(2e-3 + 8 * 1e-3)
    assert row.communication == pytest.approx(14 / 8 * 1e-3 + 14 * 1e-4)
    assert row.memory == pytest.approx(108 * MIB + MIB // 2)
    # A pass of 8 samples takes 9/10 of 9 ms by the costliest run, and its backward part hides all.
    assert row.overlapped == 0.0


def test_efficiency_of_both_kinds():
    base, row = outlook().row(1), outlook().row(8)
    step = 0.010 + 1.75e-3 + 1.4e-3
    assert row.efficiency(base) == pytest.approx(0.066 / (8 * step))
    assert row.weak_efficiency == pytest.approx(0.010 / step)
    assert base.efficiency(base) == base.weak_efficiency == 1.0


def test_compression_halves_what_is_sent():
    halved = outlook(TrainConfig(global_batch_size=64, compression="fp16"))
    assert halved.row(2).communication == pytest.approx(0.5e-3 + 2e-4)


def test_last_worthwhile_is_where_half_of_the_efficiency_is_left():
    # On 8 ranks 63 % are left; on 16, 2 + 4 ms and 1.875 + 3 ms: 66 / (16 * 10.875) = 38 %.
    assert outlook().last_worthwhile(outlook().row(1)) == 8
    still = Network(1e15, 1e-12, is_measured=False)
    flat = (run(1, 64, 64.0, mib=164), run(2, 32, 32.0, mib=132))
    assert outlook(runs=flat, network=still).last_worthwhile(outlook(runs=flat).row(1)) is None


def test_a_batch_per_rank_lets_the_global_one_grow():
    config = TrainConfig(batch_size=16, backward_passes_per_step=2)
    made = outlook(config, runs=(run(1, 32, 34.0, batch=16, mib=116), run(2, 32, 34.0, batch=16, mib=116)))
    one, two = made.row(1), made.row(2)
    assert [row.setup.sizes.global_batch_size for row in (one, two)] == [32, 64]
    assert two.efficiency(one) == pytest.approx(0.034 / 0.0352)


# ---------------------------------------------------------------- in words
def test_memory_that_is_too_small_gets_a_batch_that_fits():
    made = outlook(limit=120.0 * MIB)  # 20 samples fit
    told = verdict_lines(made, [made.row(size) for size in (1, 2, 4)])
    assert told[:2] == [
        "1 rank: does not fit into 120 MiB; give --batch-size 16 --backward-passes-per-step 4",
        "2 ranks: does not fit into 120 MiB; give --batch-size 16 --backward-passes-per-step 2",
    ]
    assert "data parallelism alone pays up to about 8 ranks" in told[2]
    none = outlook(limit=90.0 * MIB)
    told = verdict_lines(none, [none.row(1)])
    assert told[0] == "1 rank: does not fit into 90 MiB, not even one sample per pass"


def test_memory_that_suffices_tells_how_much_more_would_fit():
    made = outlook(limit=1124.0 * MIB)
    told = verdict_lines(made, [made.row(size) for size in (1, 2)])
    assert told[0] == "fits into 1.1 GiB, with up to 1,024 samples per pass"
    assert "(ZeRO, stage 1; not built here) would save 977 KiB a rank on 2 ranks" in told[2]


def test_tables_fit_a_hundred_columns(capsys):
    from hvdtrain.cli.screen import show

    made = outlook(
        TrainConfig(global_batch_size=4096, optimizer="adamw"),
        runs=(run(1, 4096, 123456.0, mib=81234), run(2, 2048, 61728.0, mib=40500)),
        limit=1.0,
        local=64,
    )
    rows = [made.row(size) for size in (1, 2, 1024)]
    show(scale_table(rows), advice_table(made, rows))
    lines = [*capsys.readouterr().out.splitlines(), *replica_lines(made, rows)]
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "…" not in text
    assert all(word in text for word in ("1024 *", "sqrt, betas", "Goyal", "(!)", "250,000 in 4 tensors"))


def test_json_holds_every_figure():
    made = outlook(limit=120.0 * MIB)
    told = json.loads(json.dumps(as_json(made, [made.row(1), made.row(2)], {"job": "job.py"})))
    assert [row["size"] for row in told["rows"]] == [1, 2]
    assert told["rows"][1]["step_s"] == pytest.approx(0.0352)
    assert told["rows"][1]["fit"] == {"batch_size": 16, "backward_passes_per_step": 2}
    assert (told["model"]["slots"], told["network"]["bandwidth"], told["job"]) == (2 * 10**6, 1e9, "job.py")
    assert told["memory"]["per_sample"] == pytest.approx(MIB)


def test_picture_is_a_png(tmp_path):
    made = outlook(limit=150.0 * MIB)
    draw_plan(made, [made.row(size) for size in (1, 2, 8)], tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
