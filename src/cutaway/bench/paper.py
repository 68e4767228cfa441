"""`cutaway bench paper`: the field's headline figures from our own code, next to the published.

Quality is left out: it needs models that were trained alike, and none is made here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from cutaway.bench import paper_attention, paper_bytes, paper_levers, paper_steps
from cutaway.bench.machine import measure
from cutaway.bench.paper_rows import PaperReport, PaperRow, PaperSize, Say
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.host import processor

SECTIONS: Mapping[str, Callable[[PaperSize], Iterator[PaperRow]]] = {
    "gqa": paper_bytes.count_sharing,
    "mla": paper_bytes.latent,
    "quantization": paper_bytes.fewer_bits,
    "window": paper_bytes.window,
    "moe": paper_bytes.experts,
    "levers": paper_levers.rows,
    "attention": paper_attention.rows,
    "prefix": paper_steps.prefix,
    "cache": paper_steps.measure_keeping,
    "cost": paper_steps.cost,
}


def run(size: PaperSize, *, only: str = "", say: Say = lambda _: None) -> PaperReport:
    """All rows, or those of the sections that `only` names, with commas between.

    Raises: ConfigError for an unknown section.
    """
    names = [name.strip() for name in only.split(",") if name.strip()] or list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise ConfigError(f"only holds {quote(unknown[0])}; sections are {', '.join(SECTIONS)}.")
    report, began = PaperReport(), time.perf_counter()
    here = measure()
    report.machine = {
        "cpu": processor.model_name() or "not told",
        **here.facts,
        "bandwidth": here.bandwidth,
        "peaks": dict(here.peaks),
    }
    for name in names:
        say(f"{name} ...")
        report.rows += SECTIONS[name](size)
    report.seconds = time.perf_counter() - began
    return report
