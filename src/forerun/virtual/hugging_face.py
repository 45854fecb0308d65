"""Make transformers treat the virtual device's tensors as it treats real ones.

transformers asks whether a tensor is fake and then takes another path than in training: it builds attention masks that
a real run leaves out, which turns flash attention into a slower kernel with a mask of its own. Here it sees no fakes;
what it then reads from tensors is answered by the recorder, the question whether a batch is packed by `no`, and the
one whether a mask leaves every token in by `yes`: example batches have no padding.
Source: `transformers/utils/import_utils.py:1930` (`is_tracing`), `transformers/masking_utils.py:750`
(`find_packed_sequence_indices`) and `:621` (`flash_attention_mask`) of transformers 5.23. Before 5.0 nothing asks
whether a tensor is fake.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch.nn.modules.module as torch_modules

from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder


@contextlib.contextmanager
def as_if_real(recorder: Recorder) -> Iterator[None]:
    """Patch transformers while active, if it is loaded."""
    imports: Any = sys.modules.get("transformers.utils.import_utils")
    masking: Any = sys.modules.get("transformers.masking_utils")
    if imports is None or masking is None:
        yield
        return
    find_packed = masking.find_packed_sequence_indices

    def never_fake(value: Any) -> bool:
        return False

    def not_packed(position_ids: Any) -> Any:
        with recorder.answering(True):  # all sequence numbers are 0: one sequence in each row
            return find_packed(position_ids)

    def nothing_masked(*args: Any, **options: Any) -> Any:
        with recorder.answering(True):
            return flash_mask(*args, **options)

    flash_mask, registered = masking.flash_attention_mask, masking.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    names = [name for name, function in registered.items() if function is flash_mask]
    masking.find_packed_sequence_indices = not_packed
    registered.update(dict.fromkeys(names, nothing_masked))
    try:
        with replaced(imports, "is_fake_tensor", never_fake):
            yield
    finally:
        masking.find_packed_sequence_indices = find_packed
        registered.update(dict.fromkeys(names, flash_mask))


@contextlib.contextmanager
def without_fakes_for_transformers() -> Iterator[None]:
    """The same for a program that imports transformers itself: it sees no fakes from its first forward call on.

    Whether a batch is packed or padded is then asked of the values, which are known (`cuda/shadow.py`).
    """
    answers: list[Any] = []

    def replace_once(*_: Any) -> None:
        imports: Any = sys.modules.get("transformers.utils.import_utils")
        if not answers and hasattr(imports, "is_fake_tensor"):  # not before 5.0
            answers.append(imports.is_fake_tensor)
            imports.is_fake_tensor = lambda value: False

    handle = torch_modules.register_module_forward_pre_hook(replace_once)
    try:
        yield
    finally:
        handle.remove()
        if answers:
            sys.modules["transformers.utils.import_utils"].is_fake_tensor = answers[0]  # type: ignore[attr-defined]
