"""From which probability on has a row a label, where it may have several?

One half suits labels that half of the rows have; few rows ever reach it for a rare label. So each label's threshold is
that with the highest F1 on the validation rows (`tune_decision`), for the baselines as for the model. The score that
chooses the checkpoint has the thresholds of that checkpoint, on the same rows: good to compare, too high as a result.
`thresholds.json`, beside the task of a trained model, has them by label.
"""

import json
from pathlib import Path

from forerun.evaluate.label_metrics import Decision, LabelPredictions, plain_decision, tune_decision
from forerun.own.facts import ASSETS, THRESHOLDS, TaskFacts
from forerun.own.whole_files import write_whole
from forerun.train.ranks import is_follower


def decision_for(answers: LabelPredictions) -> Decision:
    """Thresholds chosen on these rows; where a row has one label, the most probable one."""
    return tune_decision(answers) if answers.is_multi_label else plain_decision(answers.targets.shape[1])


class KeptDecision:
    """The decision of a run's judged model, in the run's folder from its judgement on."""

    def __init__(self, facts: TaskFacts):
        self.facts = facts
        self._folder: Path | None = None

    def open(self, folder: Path) -> None:
        """Say where the run is."""
        self._folder = folder / ASSETS

    def keep(self, decision: Decision) -> None:
        """Write the thresholds of several labels beside the run's task."""
        if self._folder is not None and self.facts.label_kind == "several" and not is_follower():
            self._folder.mkdir(parents=True, exist_ok=True)
            levels = dict(zip(self.facts.label_names, decision.levels, strict=True))
            write_whole(self._folder / THRESHOLDS, json.dumps(levels, indent=2))

    def copy(self, to: Path) -> None:
        """Write them into the folder of an export, if there are any."""
        if self._folder is not None and (self._folder / THRESHOLDS).exists():
            (to / THRESHOLDS).write_bytes((self._folder / THRESHOLDS).read_bytes())
