"""Names of the generic workloads, for who only asks whether a name is one; what they do is in `heads.py`. No torch."""

from forerun.settings.media import MEDIA

GENERIC = (
    "causal-lm", "masked-lm", "sequence-classification", "token-classification", "seq2seq-lm", "preference", "pairs",
    "embedding", *MEDIA,
)  # fmt: skip
