"""Which models does no settings file train, and what helps? Sentences for messages that refuse them.

A script that trains such a model runs under `forerun exec`: small ones of each kind below did, written as the guides of
transformers 5.24 write them (2026-11-28). Input: a hub id, or the error that ended a trace. Output: a sentence.

Not covered: whether a model is one of these where its name does not say so.
"""

import re

SCRIPT = "forerun exec -- python train.py forecasts a script that trains it."
TASKS = {
    "detr": "finds objects by boxes, which no workload trains",
    "sam": "draws masks from prompts, which no workload trains",
    "blip": "writes captions of images, which no workload trains",
    "donut": "reads images of documents as text, which no workload trains",
    "yolo": "finds objects by boxes, which no workload trains",
    "unet": "draws masks, which no workload trains; that of Stable Diffusion is sd15 or sdxl",
}
"""By a word of the id, or the letters that it begins with: what such a model does."""
OWN_CODE = re.compile(r".*(?:phi-3(?:\.5)?-vision|kimi-vl).*")
"""Ids whose class is code on the hub, and none of transformers 5.24."""
UNPUBLISHED = re.compile(r"chat-?gpt.*|claude.*|gemini.*|(?:openai )?gpt[- ]?(?:3|3\.5|4|4\.1|4o|5)(?:[- ].*)?")
"""Names of models whose weights are nobody's but their makers'."""
OF_VALUES = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode")
"""Errors of fake tensors where the values decide what is computed (torch/_subclasses/fake_tensor.py, 2.13)."""

OTHER_INPUTS = re.compile(r"missing \d+ required positional argument|You have to specify |is required as a model input")
"""What Python and transformers 5.24 say to such a call: BLIP-2 and Kosmos-2 want images beside text, Molmo 2 their
places in it."""


def other_task(name: str) -> str:
    """Why no settings file trains the model of an id, and what forecasts it; empty where the id does not say."""
    if UNPUBLISHED.fullmatch(name.lower()):
        return "Its weights are not published, so that nobody else can train it. "
    if OWN_CODE.fullmatch("-".join(name.lower().split())):
        return f"Its class is code of its own on the hub, and transformers has none; {SCRIPT} "
    parts = re.split(r"[-_. ]", name.rpartition("/")[2].lower())
    letters = [re.split(r"v?\d", part)[0] for part in parts]
    reason = next((TASKS[part] for part in (*parts, *letters) if part in TASKS), "")
    return f"It {reason}; {SCRIPT} " if reason else ""


def remedy_for_trace(error: BaseException) -> str:
    """What helps where a step could not be traced."""
    if isinstance(error, TypeError | ValueError) and OTHER_INPUTS.search(str(error)):
        return f"Its forward pass wants inputs that this workload does not give; {SCRIPT}"
    if type(error).__name__ in OF_VALUES:
        return f"What it computes depends on values, which a trace from settings does not have; {SCRIPT}"
    return "Report the model and settings; meanwhile another model.attention or precision may avoid the operator."
