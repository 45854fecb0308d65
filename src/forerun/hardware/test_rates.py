"""Which cards float16 helps."""

from forerun.hardware.catalogue import device
from forerun.hardware.rates import is_float16_worth_it


def test_float16_is_worth_it_but_where_it_runs_slower_than_float32():
    worth = {name: is_float16_worth_it(device(name).peak_flops_per_second) for name in ("t4", "p100-16gb", "gtx-1660")}
    assert worth == {"t4": True, "p100-16gb": True, "gtx-1660": False}
    assert not is_float16_worth_it({}), "a CPU that nobody measured"
