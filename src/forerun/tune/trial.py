"""How does one run of a trial go? `python -m forerun.tune.trial` runs it, with one JSON document as its argument.

It takes the settings and the forecast from the ledger, reports its score to the study after each epoch, and stops when
the study's pruner says so, or as soon as the worker that started it is gone. Whatever becomes of it is in the ledger,
so that a worker that was killed finds it there.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import optuna

from forerun.errors import ForerunError, NonFiniteLoss, OutOfMemory
from forerun.hardware.detect import detect
from forerun.ledger.store import Ledger, open_ledger
from forerun.records import Range, StepReport
from forerun.runs.recipe import Experiment
from forerun.runs.registry import searchable
from forerun.runs.run import RunListener, run_experiment
from forerun.settings.load import settings_from
from forerun.step.training_step import TrainingStep
from forerun.train.interrupt import Interrupted
from forerun.train.recovery import is_out_of_memory
from forerun.tune.study import PrunerName, open_study

FINISHED, FAILED, PRUNED, OUT_OF_MEMORY, INTERRUPTED = 0, 2, 5, 6, 130
"""Exit codes."""
PRUNED_EVENT = "pruned"


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """Everything that a trial's process is told, as its one argument."""

    ledger: str
    run_id: str
    root: str
    storage: str | None = None
    """URL of the study to report to; None for runs that nothing prunes."""
    study: str = ""
    number: int = 0
    pruner: PrunerName = "none"
    epochs_before: int = 0
    """Epochs of the folds before this one."""
    scores_before: tuple[float, ...] = ()
    """Scores of those folds."""

    def command(self) -> list[str]:
        """Command line of the process."""
        return [sys.executable, "-m", "forerun.tune.trial", json.dumps(vars(self))]


class Pruned(Exception):
    """The study's pruner stops the trial."""


class _WhileTheWorkerLives(RunListener):
    """Ends the process once its parent is gone: another worker will go on from the last checkpoint."""

    def __init__(self, parent: int):
        self.parent = parent

    def step_done(self, report: StepReport, left: Range) -> None:
        # A child whose parent is gone is adopted by another process. SIGKILL, as two must not write one run.
        if os.getppid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)


def run_trial(order: TrialOrder, parent: int) -> int:
    """Run or resume the run of `order`; returns the exit code."""
    device = detect().device
    with open_ledger(order.ledger) as ledger:
        settings = settings_from(ledger.run(order.run_id).settings)
        experiment = searchable(settings).load_experiment(settings)
        if order.storage is not None:
            experiment = _reporting(experiment, order, _trial_of(order), ledger)
        try:
            run_experiment(
                experiment, device, ledger, Path(order.root), resume=order.run_id, listener=_WhileTheWorkerLives(parent)
            )
        except Pruned as stop:
            ledger.record_event(order.run_id, PRUNED_EVENT, str(stop))
            return PRUNED
        except Interrupted:
            return INTERRUPTED
        except OutOfMemory as error:
            return _failed(error, OUT_OF_MEMORY)
        except NonFiniteLoss as error:  # a bad point of the space, not a fault: the sampler learns from it
            ledger.record_event(order.run_id, PRUNED_EVENT, str(error))
            return PRUNED
        except ForerunError as error:
            return _failed(error, FAILED)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or is_out_of_memory(error):
                return _failed(error, OUT_OF_MEMORY)
            raise
    return FINISHED


def _failed(error: BaseException, code: int) -> int:
    print(str(error), file=sys.stderr)
    return code


def _trial_of(order: TrialOrder) -> optuna.Trial:
    assert order.storage is not None
    study = open_study(order.storage, order.study, None, None, order.pruner)
    frozen = next(t for t in study.get_trials(deepcopy=False) if t.number == order.number)
    return optuna.trial.Trial(study, frozen._trial_id)


def _reporting(experiment: Experiment, order: TrialOrder, trial: optuna.Trial, ledger: Ledger) -> Experiment:
    """The experiment, with the score of each epoch reported to the study."""
    recipe = searchable(experiment.settings)
    steps_per_epoch = len(experiment.data.epoch_steps(0))
    total = experiment.settings.total_steps(steps_per_epoch * experiment.settings.global_batch_size)
    reported_epochs = set(trial.storage.get_trial(trial._trial_id).intermediate_values)

    def evaluate(step: TrainingStep, number: int) -> dict[str, float]:
        metrics = experiment.evaluate(step, number)
        score, _ = recipe.searched_score(metrics, experiment.settings)
        epoch = order.epochs_before + round(number / steps_per_epoch)
        scores = [*order.scores_before, score]
        if epoch not in reported_epochs:  # optuna warns of a second report of one step; a resumed run repeats some
            trial.report(sum(scores) / len(scores), epoch)
        if number < total and trial.should_prune():
            raise Pruned(f"behind the others after epoch {epoch}: {score:.4f}")
        return metrics

    return replace(experiment, evaluate=evaluate)


def main() -> None:
    """Entry point of the process."""
    parent = os.getppid()
    content = json.loads(sys.argv[1])
    content["scores_before"] = tuple(content["scores_before"])
    sys.exit(run_trial(TrialOrder(**content), parent))


if __name__ == "__main__":
    main()
