"""Start the pages: NiceGUI on a local port, everything served from here, behind the gate."""

# pyright: reportMissingImports=false
from collections.abc import Collection

from nicegui import app, ui
from starlette.requests import Request

from forerun.infer.listener import LimitedConnection, ProxiedConnection
from forerun.web.asking import Asker
from forerun.web.gate import PageGate
from forerun.web.pages import PageOptions, Pages
from forerun.web.shared_answers import SharedAnswers
from forerun.web.warm_workers import WarmWorkers


def serve(
    host: str, port: int, options: PageOptions, *, hosts: Collection[str] = (), opens_browser: bool = False,
    is_behind_proxy: bool = False,
) -> None:  # fmt: skip
    """Serve until interrupted. `hosts` are names, beside this machine's own, by which the pages may be called.

    Behind a proxy, visitors are told apart by the address that it forwards (`X-Forwarded-For`).
    """
    app.add_middleware(PageGate, hosts=hosts)
    answers = SharedAnswers() if options.is_public else None
    Asker.warm = warm = WarmWorkers()
    app.on_startup(warm.start)
    app.on_shutdown(Asker.nearby.stop)
    app.on_shutdown(warm.stop)

    @ui.page("/", title="Forerun", response_timeout=20)
    def page(request: Request) -> None:
        Pages(dict(request.query_params), options, answers).build()

    ui.run(
        host=host, port=port, title="Forerun", show=opens_browser, reload=False, uvicorn_logging_level="warning",
        dark=None, show_welcome_message=False, language="en-US",
        forwarded_allow_ips="*" if is_behind_proxy else "127.0.0.1",
        http=ProxiedConnection if is_behind_proxy else LimitedConnection,
    )  # fmt: skip
