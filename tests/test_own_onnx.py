"""ONNX Runtime answers as the trained model does, also at sizes that the export never saw."""

import numpy as np
import pytest
import torch

from forerun.errors import NotSupported
from forerun.hardware.detect import detect
from forerun.own.onnx_export import ONNX
from forerun.runs.export import ONNX_TOLERANCE, export_run
from own_driver import training_of

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")


@pytest.mark.parametrize(
    "kind", [pytest.param("pair", marks=pytest.mark.medium), pytest.param("chat", marks=pytest.mark.slow)]
)
def test_an_exported_model_answers_as_the_run_did(tmp_path, kind):
    runtime = pytest.importorskip("onnxruntime")
    sections = {"rows": 60, "schedule": {"max_steps": 3}}
    experiment, training = training_of(tmp_path, kind, **sections)
    list(training.steps())
    report = export_run("run", experiment, detect().device, tmp_path, tmp_path / "to", merge=False, onnx=True)
    (gap,) = [change.exported for change in report.compared if "ONNX" in change.name]
    assert gap < ONNX_TOLERANCE
    assert ONNX in report.files
    session = runtime.InferenceSession(tmp_path / "to" / ONNX)
    training.load_best()
    model = training.step.model.eval()
    for size, length in ((1, 5), (7, 48)):
        ids = torch.randint(8, 200, (size, length), generator=torch.Generator().manual_seed(length))
        values = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        inputs = {each.name: values[each.name] for each in session.get_inputs()}
        (answers,) = session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})
        with torch.no_grad():
            expected = model(**inputs).logits
        np.testing.assert_allclose(answers, expected.numpy(), atol=ONNX_TOLERANCE)


def test_packed_weights_and_other_tasks_are_refused(tmp_path):
    lora = {"adapter": {"kind": "lora", "rank": 2}, "quantization": "nf4", "rows": 30}
    experiment, training = training_of(tmp_path / "packed", "chat", **lora)
    with pytest.raises(NotSupported, match="no nf4 weights of bitsandbytes. Add --merge"):
        experiment.write_onnx(training.step, tmp_path)
    assert training_of(tmp_path / "other", "translation", rows=30)[0].write_onnx is None
