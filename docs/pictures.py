"""The pictures of README and docs, from a real run: charts as SVG, and the report as a browser shows it.

`python -m docs.pictures [RUN_DIR]`: that run, else the newest run here that has a verified front.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from autoqec.reporting import figures, html, run_report
from autoqec.store.layout import RunLayout
from tests.support import browser

PICTURES = Path(__file__).parent / "pictures"
VIEWPORTS = {"light": (1280, 1000, False), "dark": (1280, 1000, True), "phone": (390, 844, False)}


def main(argv: list[str]) -> int:
    layout = layout_of(Path(argv[0]).resolve()) if argv else newest_run(Path.cwd())
    if layout is None:
        print("no run here has a verified front; hint: make run", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    written = figures.save(PICTURES, "svg", run_report.load_pages([layout]))
    if browser.find_browser():
        written += screenshots(layout)
    else:
        print("no Chromium: the pictures of the page are left as they are; hint: make setup-browser", file=sys.stderr)
    print("\n".join(f"{path.stat().st_size:>8}  {path}" for path in written))
    return 0


def layout_of(run_dir: Path) -> RunLayout:
    return RunLayout(run_dir.parent.parent, run_dir.name)


def newest_run(root: Path) -> RunLayout | None:
    runs = sorted((path.parent for path in root.glob("runs/*/run.json")), reverse=True)
    return next((layout_of(path) for path in runs if run_report.load(layout_of(path)).front), None)


def screenshots(layout: RunLayout) -> list[Path]:
    """The page's first screen in both themes, and on a phone."""
    written = []
    with tempfile.TemporaryDirectory() as place, browser.Browser(Path(place) / "profile") as chromium:
        page = html.write([layout], Path(place) / "report.html")
        for name, (width, height, dark) in VIEWPORTS.items():
            chromium.fresh()
            chromium.look(width=width, height=height, dark=dark)
            chromium.open(page.as_uri())
            chromium.settle(0.5)
            written.append(PICTURES / f"report-{name}.png")
            chromium.picture(written[-1])
    return written


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
