"""The forecast for people who train with the Hugging Face `Trainer`, without changing their trainer.

    forecast = forerun.hf.forecast_trainer(trainer, gpu="l4")          # before training; nothing is trained
    trainer.add_callback(forerun.hf.ForerunCallback(forecast))         # measures the run and compares it
    trainer.train()

A copy of the trainer without its weights trains on the virtual GPU, as `forerun exec` runs a script: a subclass's own
loss, TRL's trainers, adapters, packed and uneven data and evaluation are what they are. On the CPU at hand our own loop
takes the trainer's model, loss and data. The callback enters the run in the ledger; the next forecast learns from it.
"""

from collections.abc import Sequence

from transformers import Trainer

from forerun.api import find_device
from forerun.errors import InvalidSettings, NotSupported
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import ForecastRequest
from forerun.hf.callback import ForerunCallback
from forerun.hf.on_card import forecast_on_card
from forerun.hf.on_host import TrainerWorkload, plan_of, settings_of, without_weights
from forerun.ledger.store import open_ledger
from forerun.records import Forecast
from forerun.verify.recalibrate import with_experience


def forecast_trainer(trainer: Trainer, gpu: str = "a100-40gb", ledger: str | None = None) -> Forecast:
    """Memory, time and cost of `trainer.train()` on `gpu` (a catalogue name, or `cpu` for here), before it starts.

    `ledger` is the SQLAlchemy URL of one whose calibration and past runs count; without it nothing is read. The
    trainer, its model, data, folders and trackers stay as they are.

    Raises:
        ForerunError: the trainer has no data, or uses what cannot be forecast; see `forerun.errors`.
    """
    device = find_device(gpu)
    if trainer.train_dataset is None:
        raise InvalidSettings("trainer.train_dataset: a forecast needs the data; found none. Give the Trainer one.")
    if trainer.model is None:
        raise NotSupported(
            "trainer.model: a forecast needs the model; found model_init alone. Give the Trainer a model."
        )
    if device.kind == "cuda":
        if ledger is None:
            return forecast_on_card(trainer, device)
        with open_ledger(ledger) as store:
            return forecast_on_card(trainer, device, store)
    plan, sample = plan_of(trainer)
    request = ForecastRequest(settings_of(trainer, plan), TrainerWorkload(trainer, sample), plan, device)
    if ledger is None:
        return make_forecast(request)
    with open_ledger(ledger) as store:
        return make_forecast(with_experience(request, store))


__all__: Sequence[str] = [
    "ForerunCallback", "TrainerWorkload", "forecast_trainer", "plan_of", "settings_of", "without_weights",
]  # fmt: skip
