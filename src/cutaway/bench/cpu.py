"""`cutaway bench cpu`: our engine beside each installed peer, on the same files, round by round.

A machine's speed moves from minute to minute, so both sides run in every round and ratios are of
one round. What is judged is the lower quartile of these ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cutaway.bench import model_files
from cutaway.bench.peers.peer_process import Peer, PeerError, has_module
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.host import gguf_file

Say = Callable[[str], None]
_REST = 0.15  # seconds between two sides: threads of the last one have gone to sleep


@dataclass(frozen=True)
class PeerKind:
    """How a peer is started. variants: arguments; the best of them in a round counts."""

    name: str
    module: str
    script: str
    variants: tuple[tuple[str, ...], ...] = ((),)


LLAMA = PeerKind("llama.cpp", "llama_cpp", "run_llama_cpp.py", (("fa",), ("nofa",)))
OPENVINO = PeerKind("OpenVINO", "openvino_genai", "run_openvino.py")
TRANSFORMERS = PeerKind("transformers", "transformers", "run_transformers.py")
PEERS = (LLAMA, OPENVINO, TRANSFORMERS)


@dataclass(frozen=True)
class Case:
    """A workload on one file. targets: the least ratio to each peer that we want to reach.

    limit: the least share of a step that its bytes alone take at the bandwidth of the same round.
    suffices: who reaches the limit need not be so many times a peer.
    """

    name: str
    model: str
    targets: Mapping[str, float | None]
    kind: Literal["decode", "prefill"] = "decode"
    context: int = 16  # of a prefill: the prompt
    sequences: int = 1
    limit: float | None = None
    suffices: bool = False


START = "process start to first token"

MODELS: dict[str, Callable[[], Path]] = {
    "q4_1": lambda: model_files.smollm2(),
    "q4_0": lambda: model_files.convert("Q4_0"),
    "q8_0": lambda: model_files.convert("Q8_0"),
    "1b": model_files.random_1b,
    "experts": model_files.random_experts,
    "gemma": lambda: model_files.gemma3(),
}
# The terms of one are to be accepted; of the other the file alone takes a while.
DEFAULT_MODELS = tuple(name for name in MODELS if name not in ("gemma", "experts"))

_L, _O, _T = LLAMA.name, OPENVINO.name, TRANSFORMERS.name
CASES = (
    Case("decode, SmolLM2 Q4_1", "q4_1", {_L: 1.8, _O: None, _T: None}, limit=0.7),
    Case("decode at 1,024, SmolLM2 Q4_1", "q4_1", {_L: 2.0, _O: None}, context=1024),
    Case("decode, SmolLM2 Q4_0", "q4_0", {_L: 1.5}),
    Case("8 sequences, SmolLM2 Q4_0", "q4_0", {_L: 2.5, _O: 1.8}, context=128, sequences=8),
    Case("32 sequences, SmolLM2 Q4_0", "q4_0", {_L: 2.0, _O: 1.8}, context=128, sequences=32),
    Case("prefill 512, SmolLM2 Q4_0", "q4_0", {_L: 1.8, _O: 1.2}, "prefill", 512),
    Case("prefill 2,048, SmolLM2 Q4_0", "q4_0", {_L: 1.8, _O: 1.2}, "prefill", 2048),
    Case("decode, SmolLM2 Q8_0", "q8_0", {_L: None}),
    Case("decode, 1B shape Q4_0", "1b", {_L: 1.3}, limit=0.8),
    Case("prefill 128, 1B shape Q4_0", "1b", {_L: 1.8}, "prefill", 128),
    Case("decode, 8 experts of 1B Q4_0", "experts", {_L: 2.0}, limit=0.75, suffices=True),
    Case("prefill 128, 8 experts of 1B Q4_0", "experts", {_L: None}, "prefill", 128),
    Case("decode, Gemma 3 270M", "gemma", {_L: 1.3}),
    Case("decode at 1,024, Gemma 3 270M", "gemma", {_L: 1.3}, context=1024),
    Case("prefill 512, Gemma 3 270M", "gemma", {_L: 1.3}, "prefill", 512),
)


@dataclass
class CpuRow:
    """Tokens per second of both sides (seconds or bytes where the unit says so).

    ratio: lower quartile of the paired ratios; for a time or a size the upper one, and `target` is
    then the most that is wanted.   limit_share: bytes over bandwidth, over the step's time.
    """

    name: str
    ours: float
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    ratio_median: float | None = None
    target: float | None = None
    limit_share: float | None = None
    limit_target: float | None = None
    suffices: bool = False
    unit: str = "tokens/s"


@dataclass
class CpuReport:
    """Rows, what ran, and the read bandwidth of all rounds in bytes per second.

    is_whole: all that was asked for was measured; no Ctrl-C and no fault came before.
    fault: what ended it, where that was a fault.
    """

    rows: list[CpuRow] = field(default_factory=list[CpuRow])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    bandwidth: float = 0.0
    is_whole: bool = True
    fault: str | None = None


def run(
    *,
    rounds: int,
    threads: int,
    python: str,
    models: Sequence[str] = DEFAULT_MODELS,
    only: str = "",
    steps: int = 16,
    say: Say = lambda _: None,
) -> CpuReport:
    """Measure the cases of some models; peers run in the interpreter `python`.

    only: a part of the names of the cases that are wanted.
    After a KeyboardInterrupt or a fault of our own side the report holds the cases that were done;
    a peer that fails is said and left out. Files are made before anything is measured.

    Raises: ConfigError where no case is wanted, or a file cannot be made.
    """
    names = [case.name for case in CASES if case.model in models] + [START]
    if not any(only in name for name in names):
        raise ConfigError(f"only is {quote(only)}; no case has it. Cases are {', '.join(names)}.")
    cases_of = {
        model: [case for case in CASES if case.model == model and only in case.name]
        for model in models
    }
    has_start = "q4_1" in models and only in START
    wanted = [name for name in models if cases_of[name] or (name == "q4_1" and has_start)]
    paths = {model: MODELS[model]() for model in wanted}
    report, bandwidths = CpuReport(), list[float]()
    try:
        for model in models:
            cases = cases_of[model]
            if not cases:
                continue
            with ExitStack() as stack:
                peers = {name for case in cases for name in case.targets}
                sides = _Sides(
                    paths[model], peers, threads=threads, python=python, stack=stack, say=say
                )
                report.versions |= sides.versions
                for case in cases:
                    say(f"{case.name} ...")
                    bandwidths += _measure(case, sides, rounds, steps, report)
        if has_start:
            _measure_start(paths["q4_1"], rounds, threads, python, report, say)
    except KeyboardInterrupt:
        report.is_whole = False
    except (PeerError, OSError) as error:
        report.is_whole, report.fault = False, str(error)
    report.bandwidth = statistics.median(bandwidths or [0.0])
    return report


class _Sides:
    """Our engine and the peers, each with the same file loaded."""

    def __init__(
        self,
        path: Path,
        wanted: set[str],
        *,
        threads: int,
        python: str,
        stack: ExitStack,
        say: Say,
    ) -> None:
        self.path = path
        arguments = [str(path), str(threads)]
        self.ours = stack.enter_context(Peer("run_cutaway.py", arguments, python=sys.executable))
        self.versions = {"cutaway": self.ours.versions}
        self.peers: dict[str, list[Peer]] = {}
        for kind in PEERS:
            if not has_module(python, kind.module):
                continue
            for more in kind.variants if kind.name in wanted else ():
                try:
                    peer = stack.enter_context(
                        Peer(kind.script, [*arguments, *more], python=python)
                    )
                except PeerError as error:
                    say(f"{kind.name} is left out: {error}")
                    continue
                self.peers.setdefault(kind.name, []).append(peer)
                self.versions[" ".join((kind.name, *more))] = peer.versions


def _measure(case: Case, sides: _Sides, rounds: int, steps: int, report: CpuReport) -> list[float]:
    """One case in paired rounds, after a round that warms up and is not counted."""
    ours, bandwidths = list[float](), list[float]()
    theirs: dict[str, list[float]] = {name: [] for name in case.targets if name in sides.peers}
    for number in range(rounds + 1):
        bandwidths.append(sides.ours.ask("bandwidth", num_bytes=sides.path.stat().st_size))
        ours.append(_ask(sides.ours, case, steps))
        for name, measured in theirs.items():
            measured.append(min(_ask(peer, case, steps) for peer in sides.peers[name]))
        if number == 0:
            for each in (ours, bandwidths, *theirs.values()):
                each.clear()
    tokens = case.context if case.kind == "prefill" else case.sequences
    share = None
    if case.kind == "decode":
        num_bytes = _bytes_read(sides.path, case)
        shares = [num_bytes / b / s for b, s in zip(bandwidths, ours, strict=True)]
        share = statistics.median(shares)
    speed = tokens / statistics.median(ours)
    if not theirs:
        report.rows.append(CpuRow(case.name, speed, limit_share=share, limit_target=case.limit))
    for name, measured in theirs.items():
        ratios = [b / a for a, b in zip(ours, measured, strict=True)]
        report.rows.append(
            CpuRow(
                case.name,
                speed,
                peer=name,
                peer_value=tokens / statistics.median(measured),
                ratio=_quartile(ratios, 0),
                ratio_median=statistics.median(ratios),
                target=case.targets[name],
                limit_share=share,
                limit_target=case.limit,
                suffices=case.suffices,
            )
        )
    return bandwidths


def _ask(peer: Peer, case: Case, steps: int) -> float:
    time.sleep(_REST)
    if case.kind == "prefill":
        return peer.ask("prefill", tokens=case.context)
    return peer.ask("decode", context=case.context, sequences=case.sequences, steps=steps)


def _bytes_read(path: Path, case: Case) -> int:
    """What one step must read: weights once, and each sequence's keys and values in float16.

    Of experts no more than the sequences can choose.
    """
    file = gguf_file.read(path)
    word = file.text("general.architecture")
    experts = file.integer(f"{word}.expert_count", 0)
    most = min(experts, case.sequences * file.integer(f"{word}.expert_used_count", 0))
    weights = 0
    for name, tensor in file.tensors.items():
        is_shared = "_exps." not in name
        weights += tensor.num_bytes if is_shared else tensor.num_bytes * most // experts
    layers = file.integer(f"{word}.block_count")
    groups = file.integer(f"{word}.attention.head_count_kv")
    heads = file.integer(f"{word}.attention.head_count")
    head_size = file.integer(f"{word}.embedding_length") // heads
    if f"{word}.attention.key_length" in file.metadata:
        head_size = file.integer(f"{word}.attention.key_length")
    return weights + case.sequences * case.context * layers * groups * head_size * 2 * 2


def _measure_start(
    path: Path, rounds: int, threads: int, python: str, report: CpuReport, say: Say
) -> None:
    """From starting a process to its first token, and the most memory that ours held."""
    say(f"{START} ...")
    program = [str(Path(sys.executable).with_name("cutaway")), "complete", "--chat", "--json"]
    program += ["--model", str(path), "--max-tokens", "1", "What is gravity?"]
    theirs = [python, str(Path(__file__).parent / "peers" / "first_llama_cpp.py")]
    theirs += [str(path), str(threads)]
    has_peer = has_module(python, LLAMA.module) and _can_run(theirs, say)
    pairs: list[tuple[float, float]] = []
    sizes: list[float] = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        sizes.append(_peak_memory(program))
        ours = time.perf_counter() - began
        began = time.perf_counter()
        if has_peer:
            _peak_memory(theirs)
        pairs.append((ours, time.perf_counter() - began))
    pairs = pairs[1:]  # the first one warmed the page cache
    row = CpuRow(START, statistics.median(p[0] for p in pairs), unit="s")
    if has_peer:
        ratios = [ours / peer for ours, peer in pairs]
        row.peer, row.peer_value = LLAMA.name, statistics.median(p[1] for p in pairs)
        row.ratio, row.ratio_median, row.target = (
            _quartile(ratios, 2),
            statistics.median(ratios),
            2.0,
        )
    report.rows.append(row)
    report.rows.append(CpuRow("peak resident memory", max(sizes) / 1e6, unit="MB", target=450.0))


def _can_run(command: Sequence[str], say: Say) -> bool:
    try:
        _peak_memory(command)
    except PeerError as error:
        say(f"{LLAMA.name} is left out: {error}")
        return False
    return True


def _peak_memory(command: Sequence[str]) -> float:
    """Run to the end and give the most bytes that were resident.

    wait4 would count this process's own memory, which the child has until it becomes the program.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status, most = Path(f"/proc/{process.pid}/status"), 0
    try:
        while process.poll() is None:
            with suppress(OSError):
                lines = status.read_text(encoding="ascii").splitlines()
                most = max(most, *(int(x.split()[1]) for x in lines if x.startswith("VmHWM")), 0)
            time.sleep(0.002)
    finally:  # of no use to anybody after Ctrl-C
        process.kill()
        process.wait()
    if process.returncode:
        raise PeerError(f"{' '.join(command[:4])} ended with {process.returncode}")
    return most * 1024


def _quartile(values: Sequence[float], which: int) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[which] if values[1:] else values[0]


def misses(report: CpuReport) -> Iterator[CpuRow]:
    """Rows that fall short of their target."""
    for row in report.rows:
        is_most = row.unit in ("s", "MB")
        value = row.ours if row.unit == "MB" else row.ratio
        share, least = row.limit_share, row.limit_target
        short: list[bool] = []
        if value is not None and row.target is not None:
            short.append(value > row.target if is_most else value < row.target)
        if share is not None and least is not None:
            short.append(share < least)
        if short and (all(short) if row.suffices else any(short)):
            yield row
