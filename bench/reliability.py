"""Every row of the plan of reliability at its figure: one command, resumable, with one table.

    python bench/reliability.py                 what is done and what is wanted
    python bench/reliability.py 8 --jobs 16     a row, several slices at once
    python bench/reliability.py all --minutes 60
    python bench/reliability.py 8 --what "end by themselves"     one part of a row
    python bench/reliability.py 14 --mended 207c336     what failed was mended there: it is run anew
    python bench/reliability.py 34 --mended 207c336 --what validators    of that part of the row

On another machine, from a copy of the tree, and back:

    PLAN_COMMIT=207c336 python bench/reliability.py 8 --jobs 16 --seed 1001 --lines lines.jsonl
    python bench/reliability.py --merge lines.jsonl

Rows are tests of the suite, or scripts beside this one, that are asked for many more trials than
the suite has time for. Each slice that ended is a line in bench/results/reliability.jsonl: the
command goes on where it was cut off. The table is bench/results/reliability.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from plan import records, table
from plan.records import Record
from plan.rows import ROWS, Row
from plan.run import Run, run_slice


def slices(row: Row, known: list[Record], first: int) -> Iterator[tuple[Row, Run, int, int]]:
    """What is left of a row: run, seed and trials of each slice. No seed is below first."""
    for run in row.runs:
        all_of_it = [each for each in known if (each.row, each.what) == (row.number, run.what)]
        own = [each for each in all_of_it if not each.mended]
        left = run.figure - sum(each.count for each in own)
        if run.once and any(each.count and not each.failures for each in own):
            continue
        seed = max((first - 1, *(each.seed for each in all_of_it)))
        while left > 0:
            seed += 1
            count = min(left, run.slice)
            left -= count
            yield row, run, seed, count


def work(chosen: list[Row], jobs: int, until: float, first: int, lines: Path) -> int:
    """Run slices until all are done or the time is over; how many failed.

    first: the least seed. lines: the file that gets a line for each slice.
    """
    known, num_failed = records.read(), 0
    if lines != records.FILE:
        known += records.read(lines)
    waiting = (each for row in chosen for each in slices(row, known, first))
    with ThreadPoolExecutor(jobs) as pool:
        running: set[Future[Record]] = set()
        while True:
            while len(running) < jobs and time.monotonic() < until:
                following = next(waiting, None)
                if following is None:
                    break
                row, run, seed, count = following
                running.add(pool.submit(run_slice, row.number, run, seed, count))
            if not running:
                return num_failed
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                record = each.result()
                records.append(record, lines)
                num_failed += record.failures
                print(f"row {record.row}, {record.what}: {record.count:,} from seed {record.seed},"
                      f" {record.failures} failed, {record.seconds:.0f} s", flush=True)  # fmt: skip
                if record.failures:
                    print(record.said, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="numbers of rows, or all")
    parser.add_argument("--jobs", type=int, default=1, help="slices at once")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="begin no slice after")
    parser.add_argument("--what", default="", help="only the parts of rows that are called so")
    parser.add_argument("--seed", type=int, default=1, help="use no seed below")
    parser.add_argument(
        "--lines",
        type=Path,
        default=records.FILE,
        help="where each slice's line goes; elsewhere than here the table is not written",
    )
    parser.add_argument("--merge", type=Path, help="take in the lines that another machine wrote")
    parser.add_argument("--fresh", action="store_true", help="forget what was run of these rows")
    parser.add_argument(
        "--mended",
        metavar="COMMIT_OR_WHY",
        help="the commit that mended what these rows' slices found, or why they told nothing of it:"
        " they and those before count no more",
    )
    args = parser.parse_args()
    numbers = {row.number: row for row in ROWS}
    wanted = list(numbers) if args.rows == ["all"] else [int(each) for each in args.rows]
    if unknown := set(wanted) - set(numbers):
        parser.error(f"there is no row {min(unknown)}; rows are {min(numbers)} to {max(numbers)}")
    if args.merge:
        print(f"{records.merge(args.merge)} slices are new")
    if args.fresh:
        for number in wanted:
            records.forget(number)
    if args.mended:
        for number in wanted:
            num_mended = records.mend(number, args.mended, args.what)
            print(f"row {number}: {num_mended} slices count no more")
        table.write()
        return 0
    chosen = [numbers[each] for each in wanted]
    chosen = [
        replace(row, runs=tuple(run for run in row.runs if args.what in run.what)) for row in chosen
    ]
    until = time.monotonic() + 60 * args.minutes
    failed = work(chosen, args.jobs, until, args.seed, args.lines)
    if args.lines != records.FILE:
        return 1 if failed else 0
    written = table.write()
    print(written.read_text(encoding="utf-8") if not wanted else f"{written.name} is written.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
