"""Asks a hub for models as a user does: names on the command line, one JSON line of answers.

The client's own waiting between its attempts is left out (`time.sleep`), what it does is not.
"""

import json
import sys
import time
import warnings

TIMEOUT_SECONDS = 1.0


def answer_to(name: str) -> dict[str, object]:
    """Hidden size of a model, tokens of a word, and bytes of its files; or the refusal."""
    from forerun.errors import ForerunError
    from forerun.models.catalogue import model_config
    from forerun.models.pretrained_tokenizer import load_tokenizer
    from forerun.models.published_files import published_bytes

    begin = time.perf_counter()
    try:
        answer: dict[str, object] = {"hidden_size": model_config(name, {}, "auto").hidden_size}
        if name.endswith("whole"):
            tokenizer = load_tokenizer(name, purpose="a test", instead="-")
            answer["tokens"] = tokenizer("good day")["input_ids"]
        answer["file_bytes"] = published_bytes(name)
    except ForerunError as error:
        answer = {"error": str(error)}
    return {**answer, "seconds": time.perf_counter() - begin}


def main() -> None:
    """Answer every name, with the network first and then from the cache alone."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    constants.HF_HUB_ETAG_TIMEOUT = constants.HF_HUB_DOWNLOAD_TIMEOUT = TIMEOUT_SECONDS
    _http.time.sleep = lambda seconds: None
    warnings.simplefilter("ignore")
    answers = {name: answer_to(name) for name in sys.argv[1:]}

    from forerun.models import catalogue, published_files

    catalogue.hub_is_reachable.cache_clear()
    catalogue.hub_is_reachable = published_files.hub_is_reachable = lambda: False
    offline = {name: answer_to(name) for name in ("acme/whole", "acme/never")}
    print(json.dumps({"online": answers, "offline": offline, "modules": "own_code" in sys.modules}))


if __name__ == "__main__":
    main()
