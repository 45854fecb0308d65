"""What does `forerun calibrate` show? Every figure, what stood for it before, and the change."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from forerun.experience import DeviceCalibration
from forerun.hardware.catalogue import Device
from forerun.units import GIGA, MICRO, TERA, format_percent


def calibration_table(now: DeviceCalibration, before: DeviceCalibration | None, device: Device) -> Table:
    """Figures of `now` beside the last calibration, else beside the datasheet where it has one."""
    title = f"Calibrated {now.device_name} in {now.took_seconds:.0f} s"
    table = Table("quantity", "last time" if before else "datasheet", "now", "change", title=title, box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    earlier = _figures(before) if before else _datasheet_figures(device)
    for name, (value, unit) in _figures(now).items():
        old = earlier.get(name, (None, unit))[0]
        change = "" if not old else format_percent(value / old - 1, signed=True)
        table.add_row(f"{name} ({unit})", "" if old is None else f"{old:.3g}", f"{value:.3g}", change)
    table.caption = "Kept in the ledger; later forecasts for this device use it."
    table.caption_justify = "left"
    return table


def _figures(calibration: DeviceCalibration) -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {}
    for dtype in dict.fromkeys(p.dtype for p in calibration.products):
        figures[f"fastest {dtype} product"] = (calibration.peak_flops_per_second(dtype) or 0.0) / TERA, "TFLOP/s"
    figures["memory, read and written"] = calibration.memory_bytes_per_second / GIGA, "GB/s"
    figures["smallest copy"] = calibration.copy_bytes_per_second[min(calibration.copy_bytes_per_second)] / GIGA, "GB/s"
    figures["host time of an operator"] = calibration.operator_host_seconds / MICRO, "µs"
    if calibration.compiled_random_seconds and calibration.compile_seconds:
        figures["random number, compiled"] = calibration.compiled_random_seconds * GIGA, "ns"
        figures["first compilation"] = calibration.compile_seconds, "s"
    if calibration.fresh_page_seconds_per_byte:
        figures["fresh memory"] = calibration.fresh_page_seconds_per_byte * GIGA, "s/GB"
    figures["disk, durable writes"] = calibration.disk_write_bytes_per_second / GIGA, "GB/s"
    figures["tokenising"] = calibration.tokenised_bytes_per_second / 1e6, "MB/s"
    figures["start of a process"] = calibration.import_seconds, "s"
    return figures


def _datasheet_figures(device: Device) -> dict[str, tuple[float, str]]:
    figures = {
        f"fastest {dtype} product": (peak / TERA, "TFLOP/s") for dtype, peak in device.peak_flops_per_second.items()
    }
    if device.bandwidth_bytes_per_second:
        figures["memory, read and written"] = device.bandwidth_bytes_per_second / GIGA, "GB/s"
    return figures
