"""The lines below are as nccl-tests prints them (layouts of 2021 and 2025, from NVIDIA/nccl-tests issues 119 and 331)."""

import pytest

from forerun.errors import BadData
from forerun.network.nccl_tests import parse_nccl_tests, read_nccl_tests

NEW = """\
# nccl-tests version 2.17.4 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid 3621216 on      pod01 device  0 [0000:10:00] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid 3621217 on      pod01 device  1 [0000:16:00] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid 3621218 on      pod02 device  0 [0000:10:00] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid 3621219 on      pod02 device  1 [0000:16:00] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1    15.51    0.00    0.00      0    15.52    0.00    0.00      0
     1048576        262144     float     sum      -1    80.00   13.11   19.66      0    90.00   11.65   17.48      0
     4194304       1048576     float     sum      -1   160.00   26.21   39.32      0   150.00   27.96   41.94      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 30.1
"""
OLD = """\
$ mpirun -np 2 ./build/alltoall_perf -b 8 -e 128M -f 2 -g 1
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 100 validation: 0
#   Rank  0 Pid  14926 on v100-gpu-1 device  0 [0x00] Tesla V100-PCIE-16GB
#   Rank  1 Pid   9210 on v100-gpu-1 device  1 [0x00] Tesla V100-PCIE-16GB
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576        131072   float             50.0   20.97   10.49  0e+00     45.0   23.30   11.65    N/A
"""


def test_a_table_of_today():
    (curve,) = parse_nccl_tests(NEW.splitlines(), "run.txt").curves
    assert (curve.kind, curve.ranks, curve.machines) == ("all_reduce", 4, 2)
    assert curve.points == ((1048576, 90e-6), (4194304, 160e-6))


def test_between_below_and_above_the_points():
    (curve,) = parse_nccl_tests(NEW.splitlines(), "run.txt").curves
    assert curve.seconds(2097152) == pytest.approx((90e-6 * 160e-6) ** 0.5)
    assert curve.seconds(8) == 90e-6
    assert curve.seconds(2 * 4194304) == pytest.approx(320e-6)


def test_several_runs_in_one_file_and_an_older_layout():
    table = parse_nccl_tests((NEW + OLD).splitlines(), "run.txt")
    assert [(c.kind, c.ranks, c.machines) for c in table.curves] == [("all_reduce", 4, 2), ("all_to_all", 2, 1)]
    assert table.curves[1].points == ((1048576, 50e-6),)


def test_prefixes_of_launchers_are_passed_over():
    for prefix in ("[1,0]<stdout>:", "0: ", "2026-01-01T00:00:00Z [rank0]: "):
        text = [prefix + line for line in NEW.splitlines()]
        assert parse_nccl_tests(text, "run.txt") == parse_nccl_tests(NEW.splitlines(), "run.txt")


def test_the_nearest_curve_stays_on_its_side_of_the_network():
    table = parse_nccl_tests((NEW + OLD).splitlines(), "run.txt")
    assert table.nearest("all_reduce", 8, 1).kind == "all_to_all"
    assert table.nearest("all_gather", 64, 8).kind == "all_reduce"
    assert parse_nccl_tests(OLD.splitlines(), "run.txt").nearest("all_reduce", 16, 2) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing here", "no table"),
        (NEW.replace("# Collective test starting: all_reduce_perf\n", ""), "name of its program"),
        ("\n".join(line for line in NEW.splitlines() if "Rank" not in line), "without its ranks"),
    ],
)
def test_what_is_missing_is_said(text, problem):
    with pytest.raises(BadData, match=problem):
        parse_nccl_tests(text.splitlines(), "run.txt")


def test_files(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text(NEW)
    assert read_nccl_tests(path).curves[0].ranks == 4
    with pytest.raises(BadData, match="cannot be read"):
        read_nccl_tests(tmp_path / "none.txt")
