"""An exported detector, read back from its folder alone and ready to answer the service (`service.app`).

Each file is scored as in evaluation: its head and tail up to the model's length. A longer file is also read in windows
that overlap by half, to show which lines the score comes from. A flag needs the file and a few of its windows above the
threshold, which was measured so; of cards that were not, the whole-file score decides alone. Where the card has a
second opinion, that is asked about every file that would be flagged, and must agree.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from forerun.data.sampler import LENGTH_MULTIPLE
from forerun.errors import BadData, NotSupported
from forerun.infer.export import DESCRIPTION, load_exported
from forerun.recipes.code_detector.data.tokens import PAD_ID, CodeTokeniser, cut, decisive, window, window_starts
from forerun.recipes.code_detector.data.training_data import (
    EVALUATION_BATCH_TOKENS,
    load_exported_tokeniser,
    text_of,
)
from forerun.recipes.code_detector.evaluation.second_opinion import SecondOpinion, read_second_opinion
from forerun.recipes.code_detector.options import options_of
from forerun.recipes.code_detector.service.detector_card import DetectorCard, read_card
from forerun.recipes.code_detector.service.messages import Window
from forerun.recipes.code_detector.service.scoring import Answer, DetectionQuestion
from forerun.recipes.code_detector.workload import CodeDetectorWorkload
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.precision import POLICIES

Ids = NDArray[np.int32]


class ServedDetector:
    """A detector that answers questions; build it with `open_detector`."""

    def __init__(
        self,
        model: nn.Module,
        tokeniser: Any,
        settings: Settings,
        card: DetectorCard,
        second: SecondOpinion | None = None,
    ):
        self.model, self.tokeniser, self.settings, self.second = model.eval(), tokeniser, settings, second
        self._card, self._form = card, options_of(settings).form

    @property
    def card(self) -> DetectorCard:
        """The card of the export."""
        return self._card

    def answer(self, questions: Sequence[DetectionQuestion]) -> list[Answer]:
        """One answer a question, in order."""
        sequences: list[Ids] = []
        # First sequence of each question, tokens of the file, and the lines of each window.
        entries: list[tuple[int, int, list[tuple[int, int]]]] = []
        for question in questions:
            whole, tokens, windows = self._sequences(question)
            entries.append((len(sequences), tokens, [lines for _, lines in windows]))
            sequences += [whole, *(ids for ids, _ in windows)]
        probabilities, vectors = self.scores(sequences)
        calibrated = self._card.calibration(probabilities)
        answers = [
            Answer(
                probability=float(calibrated[first]),
                tokens=tokens,
                windows=tuple(
                    Window(first_line=low, last_line=high, probability=float(calibrated[first + n]))
                    for n, (low, high) in enumerate(lines, 1)
                ),
                vector=vectors[first],
                least=self._least(probabilities, first, len(lines)),
            )
            for first, tokens, lines in entries
        ]
        return [self._with_second(*each) for each in zip(questions, answers, strict=True)]

    def _with_second(self, question: DetectionQuestion, answer: Answer) -> Answer:
        """The answer with the second opinion, which is asked where the detector alone would flag the file."""
        threshold = self._card.served.threshold
        if self.second is None or threshold is None or answer.decisive(self._card) <= threshold:
            return answer
        return replace(answer, second=float(self.second([question.code], [question.language])[0]))

    def _least(self, probabilities: NDArray[np.float64], first: int, windows: int) -> float | None:
        """Calibrated least score of a file and of its windows that have a say; None for a file without windows."""
        if not windows:
            return None
        places = [first, *decisive(range(first + 1, first + 1 + windows))]
        return float(self._card.calibration(probabilities[places].min()[None])[0])

    def scores(self, sequences: Sequence[Ids]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Uncalibrated probabilities (n,) and unit vectors (n, d); the order of the work is by length."""
        probabilities = np.zeros(len(sequences))
        vectors: NDArray[np.float32] | None = None
        order = np.argsort([-len(ids) for ids in sequences], kind="stable").tolist()
        with torch.inference_mode(), POLICIES[self.settings.precision].autocast("cpu"):
            while order:
                length = math.ceil(len(sequences[order[0]]) / LENGTH_MULTIPLE) * LENGTH_MULTIPLE
                count = max(1, EVALUATION_BATCH_TOKENS // length)
                batch, order = order[:count], order[count:]
                logits, batch_vectors = self._forward([sequences[n] for n in batch], length)
                vectors = np.zeros((len(sequences), batch_vectors.shape[1]), np.float32) if vectors is None else vectors
                probabilities[batch] = logits.float().softmax(dim=1)[:, 1].numpy()
                vectors[batch] = batch_vectors.float().numpy()
        return probabilities, vectors if vectors is not None else np.zeros((0, 0), np.float32)

    def _forward(self, sequences: Sequence[Ids], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        pad = PAD_ID if isinstance(self.tokeniser, CodeTokeniser) else self.tokeniser.pad_token_id
        ids = np.full((len(sequences), length), pad, dtype=np.int64)
        mask = np.zeros((len(sequences), length), dtype=np.int64)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        output = self.model(torch.from_numpy(ids), torch.from_numpy(mask))
        return output.logits, output.vectors

    def _sequences(self, question: DetectionQuestion) -> tuple[Ids, int, list[tuple[Ids, tuple[int, int]]]]:
        """Ids of the whole file, its tokens, and its windows with their lines."""
        code, limit = text_of(question.code, question.language, self._form), self.settings.batch.sequence_length
        if not isinstance(self.tokeniser, CodeTokeniser):
            ids = self.tokeniser(code, verbose=False)["input_ids"]
            cut_ids = self.tokeniser(code, truncation=True, max_length=limit, verbose=False)["input_ids"]
            return np.asarray(cut_ids, dtype=np.int32), len(ids), []
        ids, lines = self.tokeniser.with_lines(code)
        whole = cut(ids, limit)
        if len(ids) + 2 <= limit or self._form != "raw":  # lines of a normalised text are not those of the file
            return whole, len(ids) + 2, []
        last = limit - 3  # of a window's tokens, two are marks
        windows = [
            (window(ids, start, limit), (lines[start], lines[start + last])) for start in window_starts(len(ids), limit)
        ]
        return whole, len(ids) + 2, windows


def open_detector(folder: Path) -> ServedDetector:
    """The detector that `forerun export` wrote into `folder`.

    Raises:
        BadData: no such export is there, or it is damaged.
        NotSupported: it is the export of something else.
    """
    try:
        settings = settings_from(json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))["settings"])
    except (OSError, KeyError, ValueError) as error:
        raise BadData(f"{folder}: no export of this program: {error}. Make one with forerun export RUN.") from error
    if settings.workload != CodeDetectorWorkload.name:
        raise NotSupported(f"serve: a {CodeDetectorWorkload.name} can be served; {folder} holds a {settings.workload}.")
    settings, model = load_exported(folder, CodeDetectorWorkload(settings))
    card = read_card(folder)
    second = read_second_opinion(folder) if card.has_second_opinion else None
    return ServedDetector(model, load_exported_tokeniser(folder, settings), settings, card, second)
