"""`forerun ui`: the answers as pages in the browser."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Annotated

import typer

from forerun.cli.options import ledger_url
from forerun.cli.tune_command import STORAGE
from forerun.errors import InvalidSettings, MissingExtra

LOCAL = ("127.0.0.1", "localhost", "::1")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="ui")(ui)


def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8765,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; also a name to answer by.")] = "127.0.0.1",
    storage: Annotated[
        str, typer.Option("--storage", metavar="URL", help="Database of tunings to show, as `tune --storage`.")
    ] = STORAGE,
    allow_scripts: Annotated[
        bool, typer.Option("--allow-scripts", help="Add a page that runs pasted scripts, shut in, on a virtual GPU.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Pages for anybody: no runs, no folders, nothing kept on disk, a queue.")
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser window.")] = False,
) -> None:
    """Look instead of read: will it fit, which GPU, timeline, runs; in the browser, on this machine."""
    if public and allow_scripts:
        raise InvalidSettings("ui: --allow-scripts runs what is pasted, so not for anybody; found --public. Leave one.")
    try:
        from forerun.web.app import serve
        from forerun.web.pages import PageOptions
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("forerun"):
            raise
        raise MissingExtra(
            f"ui: needs NiceGUI; importing {error.name} failed. Install it with: pip install 'forerun[ui]'."
        ) from error
    print(f"http://{host}:{port}  (Ctrl-C ends it)", flush=True)  # whoever redirects the output waits for this line
    hosts = () if host in LOCAL else (host,)
    options = PageOptions(
        ledger_url=ledger_url(), studies_url=storage, allows_scripts=allow_scripts, is_public=public
    )  # fmt: skip
    with leaving_nothing() if public else contextlib.nullcontext():
        serve(
            host, port, options, hosts=hosts, opens_browser=open_browser, is_behind_proxy=public and host not in LOCAL
        )


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Traces and downloads of this process and its workers lie in a folder that goes with it; there is no ledger."""
    ended = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # containers end by it
    with tempfile.TemporaryDirectory(prefix="forerun-ui-") as folder:
        own = {
            "FORERUN_CACHE": folder,
            "FORERUN_TRACES": f"{folder}/traces",
            "FORERUN_LEDGER": f"sqlite:///{folder}/none.sqlite",
            "HF_HOME": f"{folder}/hub",
        }
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, ended)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
