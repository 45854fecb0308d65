"""The pages of `forerun ui`, for anybody, on a small host: what the Dockerfile beside this starts.

`SPACE_HOST` is the name by which the host is called (Hugging Face Spaces set it), `PORT` where it listens.
"""

import os

from forerun.cli.ui_command import leaving_nothing
from forerun.web.app import serve
from forerun.web.pages import PageOptions


def main() -> None:
    """Serve until stopped."""
    hosts = [name for name in os.environ.get("SPACE_HOST", "").split(",") if name]
    with leaving_nothing():
        options = PageOptions(ledger_url=os.environ["FORERUN_LEDGER"], studies_url="", is_public=True)
        serve("0.0.0.0", int(os.environ.get("PORT", "7860")), options, hosts=hosts, is_behind_proxy=True)


if __name__ in {"__main__", "__mp_main__"}:
    main()
