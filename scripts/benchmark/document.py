"""The part of docs/performance.md that a run writes: the table, the machine, the plot."""

from __future__ import annotations

from scripts.benchmark.plot import svg
from scripts.benchmark.results import Results
from scripts.benchmark.servers import ROOT

DOCUMENT = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
BEGIN, END = "<!-- written by scripts/bench --docs -->\n", "<!-- until here -->\n"


def write(results: Results) -> None:
    """Replace the document's part, and the plot."""
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(replaced(text, section(results)))
    PLOT.write_text(svg(results))


def replaced(text: str, section: str) -> str:
    """The text with another part between the two marks. Raises ValueError where they are not."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT.name} has not the marks {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + section + END + after


def section(results: Results) -> str:
    """What stands between the marks."""
    machine = results.machine
    about = (
        f"Measured {machine['date']} with Ostler {machine['version']} on "
        f"{machine['processors']} processors ({machine['processor']}) with "
        f"{machine['system']}, Python {machine['python']}, in {machine['seconds']} s. The load of the "
        f"machine was {machine['load_before']} before and {machine['load_after']} after the run"
        + (", which was a quick one: a tenth of the load." if machine.get("quick") else ".")
    )
    return "\n".join(
        [
            "",
            about,
            "",
            "![Ostler compared with the peer](performance.svg)",
            "",
            results.markdown(),
            "",
            "",
        ]
    )
