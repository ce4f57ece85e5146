"""`headrace up`: start the local broker, or find it running."""

from __future__ import annotations

from headrace.cli.home import DEFAULT_HOME, HomeOption
from headrace.cli.output import JsonOption, emit, out
from headrace.cli.progress import shown
from headrace.stack.local import LocalStack


def up_command(*, home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """Start the local Kafka broker and wait until it answers. Run again, it finds the one that runs."""
    with shown(json=json) as show:
        running = LocalStack(home).up(on_event=show.event, on_progress=show.jar)
    if json:
        emit(
            {
                "ok": True,
                "bootstrap": running.bootstrap,
                "parts": running.addresses,
                "adopted": list(running.adopted),
            }
        )
        return
    out.print(f"Kafka is up at [bold]{running.bootstrap}[/]. `headrace ps` shows it, `headrace down` stops it.")
