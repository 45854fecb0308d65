"""Tests on a virtual GPU: a pull request fails when training no longer fits.

    def test_trains(virtual_gpu):                       # what says `cuda` runs on a virtual T4
        train_one_step()
        assert virtual_gpu.memory.peak_allocated_bytes < 4 * 2**30

    @pytest.mark.fits("a100-40gb", within=0.9)          # fails where its peak needs more than 90 % of that card
    def test_fits():
        train_one_step()

The fixture is active from its set-up on, so that other fixtures can build on it. Its card is that of the mark, or of an
indirect parameter (`@pytest.mark.parametrize("virtual_gpu", ["t4", "l4"], indirect=True)`), else a T4. Importing this
plugin imports neither torch nor the virtual GPU: a test suite that does not use it pays nothing.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forerun.forecasting.virtual_cuda import VirtualCuda

DEFAULT_GPU = "t4"
MOST_LISTED = 6
"""Allocations that a failure lists."""
MARK = "fits(gpu, within=1.0): the test runs on that virtual GPU, and fails where its peak needs more than this share."
CARD = pytest.StashKey["VirtualCuda"]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", MARK)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test with the mark runs on its card, also where it does not ask for the fixture."""
    names = getattr(item, "fixturenames", None)
    if names is None or item.get_closest_marker("fits") is None:
        return
    _limits(item)  # a mark that is wrong ends the collection
    if "virtual_gpu" not in names:
        names.insert(0, "virtual_gpu")


@pytest.fixture
def virtual_gpu(request: pytest.FixtureRequest) -> "Generator[VirtualCuda]":
    """A virtual GPU in use; its `.memory`, `.clock` and `.assumed` tell of what ran so far."""
    from forerun.errors import ForerunError
    from forerun.forecasting.virtual_cuda import virtual_cuda

    gpu, _ = _limits(request.node)
    try:
        card = virtual_cuda(getattr(request, "param", gpu))
    except ForerunError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    with card:
        request.node.stash[CARD] = card
        yield card


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge a test with the mark when it has run, as part of its call."""
    card = item.stash.get(CARD, None)
    if card is None or item.get_closest_marker("fits") is None:
        return (yield)
    import torch

    try:
        result = yield
    except torch.OutOfMemoryError as error:
        message = f"{item.name}: {error}\n{_places(error)}\n{_alive(card, is_full=True)}"
        raise pytest.fail.Exception(message, pytrace=False) from None
    message = _verdict(item.name, card, _limits(item)[1])
    if message:
        pytest.fail(message, pytrace=False)
    return result


def _limits(item: Any) -> tuple[str, float]:
    """Card and share of the mark; a T4 and all of it without one."""
    mark = item.get_closest_marker("fits")
    if mark is None:
        return DEFAULT_GPU, 1.0
    named = dict(zip(("gpu", "within"), mark.args, strict=False)) | mark.kwargs
    gpu, within = named.pop("gpu", DEFAULT_GPU), named.pop("within", 1.0)
    is_share = isinstance(within, int | float) and 0 < within <= 1
    if named or len(mark.args) > 2 or not isinstance(gpu, str) or not is_share:
        raise pytest.UsageError(
            f"{item.nodeid}: {MARK.partition(':')[0]} takes the name of a GPU and a share above 0 and at most 1; "
            f"found {', '.join([*map(repr, mark.args), *(f'{n}={v!r}' for n, v in mark.kwargs.items())])}."
        )
    return gpu, within


def _verdict(name: str, card: "VirtualCuda", within: float) -> str:
    """Why a test does not fit, with what was alive; empty where it does."""
    from forerun.units import format_bytes, format_percent

    needs, capacity = card.card, card.device.memory_bytes
    if needs.fits and needs.device_bytes.expected <= within * capacity:
        return ""
    return (
        f"{name} needs {format_bytes(needs.device_bytes.expected)} of device memory at its peak "
        f"({format_bytes(needs.device_bytes.conservative)} at most); {format_percent(within)} of {card.device.name} is "
        f"{format_bytes(within * capacity)} of {format_bytes(capacity)}.\n{_alive(card)}"
    )


def _places(error: BaseException) -> str:
    """Lines of the program, outermost first, that led to an error."""
    import traceback
    from pathlib import Path

    import torch

    inside = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(pytest.__file__).parent.parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(inside)]
    return "\n".join(f"  at {Path(frame.filename).name}:{frame.lineno}: {frame.line}" for frame in frames)


def _alive(card: "VirtualCuda", *, is_full: bool = False) -> str:
    """The peak, and the largest allocations alive there by place."""
    from collections import Counter

    from forerun.memory.explain import live_at_peak
    from forerun.units import format_bytes

    memory = card.memory
    totals: Counter[tuple[str, str, str]] = Counter()
    for tensor in live_at_peak(card.trace, memory):
        operator = tensor.operator.removeprefix("aten.").removesuffix(".default")
        totals[tensor.category.replace("_", " "), tensor.module, f"{tensor.line} {operator}".strip()] += tensor.bytes
    listed = [
        f"  {format_bytes(size):>9}  " + "  ".join(part for part in parts if part)
        for parts, size in totals.most_common(MOST_LISTED)
    ]
    when = "allocated when it failed" if is_full else "allocated at the peak"
    rest = [f"  … and {len(totals) - MOST_LISTED} smaller"] if len(totals) > MOST_LISTED else []
    return "\n".join([f"{format_bytes(memory.peak_allocated_bytes)} {when}, the largest:", *listed, *rest])
