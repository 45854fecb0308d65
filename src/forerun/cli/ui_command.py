"""`forerun ui`: the answers as pages in the browser."""

from typing import Annotated

import typer

from forerun.cli.options import ledger_url
from forerun.cli.tune_command import STORAGE
from forerun.errors import MissingExtra

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
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser window.")] = False,
) -> None:
    """Look instead of read: will it fit, which GPU, timeline, runs; in the browser, on this machine."""
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
    options = PageOptions(ledger_url=ledger_url(), studies_url=storage, allows_scripts=allow_scripts)
    serve(host, port, options, hosts=hosts, opens_browser=open_browser)
