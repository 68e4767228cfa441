"""Hostile templates end within their budget, reach nothing, and say what was wrong with them."""

from __future__ import annotations

import ast
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

import cutaway
from cutaway.core.errors import TemplateError
from cutaway.text import meter as meter_module
from cutaway.text import template as template_module
from cutaway.text.chat_messages import from_dicts
from cutaway.text.meter import MAX_TEXT, REST_SECONDS, STEPS_AT_START, Meter
from cutaway.text.template import MAX_LEXEMES, MAX_SOURCE, ChatTemplate
from trials import patience

TALK = from_dicts([{"role": "user", "content": "hello"}])
NAMES = (
    "messages",
    "range",
    "dict",
    "namespace",
    "raise_exception",
    "strftime_now",
    "''",
    "0",
    "x",
)
SECRETS = (
    "__class__",
    "__class__.__mro__",
    "__class__.__base__.__subclasses__()",
    "__init__.__globals__",
    "__globals__['os']",
    "__self__",
    "__call__.__func__",
    "__dict__",
    "__reduce__()",
    "mro()",
    "gi_frame",
)


def escapes() -> Iterator[str]:
    for name in NAMES:
        for secret in SECRETS:
            yield f"{{{{ {name}.{secret} }}}}"
    yield from (
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages.sort() }}",
        "{{ messages.clear() }}",
        "{{ messages[0]['__class__'].x }}",
        "{{ ''['__class__'].x }}",
        "{{ 'a'['format']('{0.__class__}') }}",
        "{{ '{0.__class__}'.format(messages) ~ x.y }}",
        "{{ '{0.__class__.__mro__}'.format('a') }}",
        "{{ '{a[0].__class__.__init__}'.format(a=messages) }}",
        "{{ ''.format.__globals__ }}",
        "{{ 'a'.format_map({}) }}",
        "{{ messages | attr('append') }}",
        "{{ messages | map(attribute='__class__.x') | list | first ~ x.y }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ joiner(1) }}",
        "{{ self._TemplateReference__context.x }}",
        "{{ self.__init__ }}",
        "{% include 'file' %}",
        "{% import 'file' as f %}",
        "{% from 'file' import f %}",
        "{% extends 'file' %}",
        "{% block a %}{% endblock %}",
        "{% autoescape true %}{% endautoescape %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
        "{% macro f() %}{% endmacro %}{{ f._environment }}",
        "{% macro f() %}{% endmacro %}{{ f }}",
        "{% for m in messages %}{{ loop._iterator.__class__ }}{% endfor %}",
        "{% for m in messages %}{{ loop }}{% endfor %}",
        "{{ namespace }}",
        "{{ range }}",
        "{{ namespace() }}",
        "{{ [namespace()] }}",
        "{{ [range] | string }}",
        "{{ messages | map('upper') }}",
    )


BIG = 10**9


def blow_ups() -> Iterator[str]:
    for width in (BIG, 10**6 * 5, 2**70):
        yield f"{{{{ 'a' * {width} }}}}"
        yield f"{{{{ {width} * 'a' }}}}"
        yield f"{{{{ ['a'] * {width} }}}}"
        yield f"{{{{ ('a', 'b') * {width} }}}}"
        yield f"{{{{ 'a'.center({width}) }}}}"
        yield f"{{{{ 'a'.ljust({width}) }}}}"
        yield f"{{{{ 'a'.zfill({width}) }}}}"
        yield f"{{{{ '\\t'.expandtabs({width}) }}}}"
        yield f"{{{{ 'a' | center({width}) }}}}"
        yield f"{{{{ 'a\\nb' | indent({width}) }}}}"
        yield f"{{{{ ['a'] | batch({width}, 'x') | list }}}}"
        yield f"{{{{ ['a'] | slice({width}) | list }}}}"
        yield f"{{{{ '%{width}d' % 1 }}}}"
        yield f"{{{{ '%-{width}s' | format('a') }}}}"
        yield f"{{{{ '%.{width}f' % 1.5 }}}}"
        yield f"{{{{ '%*d' % ({width}, 1) }}}}"
        yield f"{{{{ '{{:{width}}}'.format('a') }}}}"
        yield f"{{{{ '{{:{{}}}}'.format('a', {width}) }}}}"
        yield f"{{{{ [1, [2]] | tojson(indent={width}) }}}}"
        yield f"{{{{ range({width}) | list }}}}"
        yield f"{{% for i in range({width}) %}}{{% endfor %}}"
        yield f"{{{{ (5).__round__(-{width}) }}}}"
        yield f"{{{{ 5 | round(-{width}) }}}}"
        yield f"{{{{ 7 ** {width} }}}}"
        yield f"{{{{ (2 ** 200) ** {width} }}}}"
        yield f"{{{{ '%{width}d' is divisibleby(1) }}}}"
        yield f"{{{{ '%{width}d' is odd }}}}"
        yield f"{{{{ (1).to_bytes({width}, 'big') }}}}"
        yield f"{{{{ strftime_now('%{width}Y' * 99) }}}}"
    yield "{{ 0x" + "f" * 5000 + " }}"
    yield "{{ " + "9" * 5000 + " }}"
    yield "{{ ('9' * 4000) | int * 9 }}"
    yield "{{ ('f' * 4000) | int(base=16) + x.y }}"


DOUBLE = (
    "{% set ns = namespace(a=START) %}{% for i in range(99) %}{% set ns.a = GROW %}{% endfor %}"
)
USES = (
    "{{ ns.a }}",
    "{{ ns.a | tojson }}",
    "{{ ns.a | string }}",
    "{{ ns.a ~ '' }}",
    "{{ '%s' % (ns.a,) }}",
    "{{ '{}'.format(ns.a) }}",
    "{{ [ns.a] | join }}",
    "{{ [ns.a, ns.a] | sort }}",
    "{{ ns.a in [ns.a + ns.a] }}",
    "{{ [ns.a].index(ns.a + ns.a) }}",
)


def growth() -> Iterator[str]:
    for use in USES:
        for start, grow in (
            ("'ab'", "ns.a + ns.a"),
            ("'ab'", "ns.a ~ ns.a"),
            ("'ab'", "ns.a.replace('a', ns.a)"),
            ("'ab'", "ns.a.join([ns.a, ns.a])"),
            ("[1]", "ns.a + ns.a"),
            ("[1]", "[ns.a, ns.a]"),
            ("[1]", "{'k': ns.a, 'l': ns.a}"),
        ):
            yield DOUBLE.replace("START", start).replace("GROW", grow) + use
    twins = (
        "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(60) %}"
        "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}"
    )
    for use in (
        "{{ ns.a == ns.b }}",
        "{{ ns.a < ns.b }}",
        "{{ ns.a in [ns.b] }}",
        "{{ ns.a is eq(ns.b) }}",
        "{{ ns.a is in([ns.b]) }}",
        "{{ [ns.a] | select('eq', ns.b) | list }}",
        "{{ [ns.a, ns.b] | unique | list }}",
        "{{ [ns.a, ns.b] | max }}",
        "{{ {ns.a: 1} }}",
        "{{ dict([(ns.a, 1)]) }}",
        "{{ {}.get(ns.a) }}",
        "{{ ns.a in {} }}",
        "{{ {'k': 1}[ns.a] ~ x.y }}",
        "{{ [ns.b].count(ns.a) }}",
        "{{ {'a': ns.a, 'b': ns.b} | dictsort(by='value') }}",
        "{{ [{'a': ns.a}, {'a': ns.b}] | sort(attribute='a') }}",
        "{{ ({'a': ns.a}).items() == ({'a': ns.b}).items() }}",
    ):
        yield twins + use


MANY = "range(100000)"


def loops() -> Iterator[str]:
    for inner in (
        "",
        "{{ i }}",
        "x",
        "{% if i is odd %}{% endif %}",
        f"{{% for j in {MANY} %}}{{% endfor %}}",
        f"{{% for j in {MANY} if false %}}{{% endfor %}}",
        f"{{% for j in {MANY} if 1 == 2 %}}{{% endfor %}}",
        f"{{{{ {MANY} | list | length }}}}",
        f"{{{{ {MANY} | sort | first }}}}",
        f"{{{{ {MANY} | map('string') | join }}}}",
        f"{{{{ {MANY} | select('odd') | list | length }}}}",
        f"{{{{ {MANY} | reject('even') | last }}}}",
        f"{{{{ {MANY} | max }}}}",
        f"{{{{ {MANY} | reverse | first }}}}",
        f"{{{{ 'a' in {MANY} }}}}",
        f"{{{{ 1.5 in {MANY} }}}}",
        "{{ dict(a=1, **{'b': 2}).a }}",
        "{{ ('a' * 100000) in ('b' * 100000) }}",
        "{{ ('a' * 60000).rfind('b' + 'a' * 30000) }}",
        "{{ ('a' * 60000).strip('b' * 30000 + 'a') | length }}",
        "{{ ('a' * 60000) | upper | length }}",
        "{{ ('a ' * 60000).split() | length }}",
        "{{ ('a' * 60000) == ('a' * 60000) }}",
        "{{ ('a' * 60000)[1:] | length }}",
        "{{ messages" + "[0:]" * 150 + " | length }}",
        "{{ x" + ".y" * 1 + " }}",
        "{% set y = messages" + "[0].role is string and messages" * 90 + " %}",
    ):
        yield (
            f"{{% for i in {MANY} %}}{inner}{{% endfor %}}{{% for i in {MANY} %}}a{{% endfor %}}"
            * 2
        )
    yield "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
    twice = "{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    yield "{% macro f(n) %}" + twice + "{% endmacro %}{{ f(60) }}"
    yield "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}"
    yield (
        "{% for i in [50] recursive %}{% if i %}{{ loop([i - 1, i - 1]) }}{% endif %}{% endfor %}"
    )
    yield "{% set x %}" + "a" * 500_000 + "{% endset %}{% for i in range(99) %}{{ x }}{% endfor %}"
    yield (
        "{% macro f() %}"
        + "a" * 500_000
        + "{% endmacro %}"
        + (f"{{% for i in {MANY} %}}{{% set y = f() %}}{{% endfor %}}")
    )
    yield (
        "{% macro f(a="
        + "1 + " * 60
        + "1) %}{% endmacro %}"
        + (f"{{% for i in {MANY} %}}{{% set y = f() %}}{{% endfor %}}")
    )
    yield ("{% for i in " + "[" * 9 + MANY + "]" * 9 + " %}{{ i }}{{ i }}{{ i }}{% endfor %}") * 9


def malformed() -> Iterator[str]:
    yield "{% for"
    yield "{{ 'a"
    yield "{% endfor %}"
    yield "{{ 1 + }}"
    yield "{# no end"
    yield "{% raw %} no end"
    yield "{% unknown %}"
    yield "{{ a | nofilter }}"
    yield "{{ a is notest }}"
    yield "{% break %}"
    yield "{% generation %} no end"
    yield "{{ " + "(" * 5000 + ")" * 5000 + " }}"
    yield "{{ " + "[" * 5000 + "]" * 5000 + " }}"
    yield "{{ " + "-" * 5000 + "1 }}"
    yield "{{ " + "not " * 5000 + "1 }}"
    yield "{{ " + "1 + " * 15000 + "1 }}"
    yield "{{ x" + ".y" * 15000 + " }}"
    yield "{% if x %}" * 500 + "{% endif %}" * 500
    yield "{% for x in y %}" * 500 + "{% endfor %}" * 500
    yield "{% if x %}{% " + "elif x %}{% " * 9000 + "endif %}"
    yield "{{ x }}" * (MAX_LEXEMES // 3)
    yield "a" * (MAX_SOURCE + 1)
    yield "{{ 1 / 0 }}"
    yield "{{ 1 // 0 }}"
    yield "{{ 1 + 'a' }}"
    yield "{{ [1, 'a'] | sort }}"
    yield "{{ x.y.z }}"
    yield "{{ x() }}"
    yield "{{ messages[0].content.index('q') }}"
    yield "{{ '%d' % 'a' }}"
    yield "{{ '%q' % 'a' }}"
    yield "{{ '%' % 1 }}"
    yield "{{ '%s %s' % 'a' }}"
    yield "{{ '{} {}'.format('a') }}"
    yield "{{ '{'.format('a') }}"
    yield "{{ x | tojson }}"
    yield "{{ 2.0 ** 5000 }}"
    yield "{% set x = 1 %}{% set x.y = 1 %}"


REFUSED = [*escapes(), *blow_ups(), *malformed()]
LOOPS = [*loops()]
BOUNDED = [*growth(), *LOOPS]


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> list[Meter]:
    """The budgets of all renderings of a test."""
    return keep_meters(monkeypatch, STEPS_AT_START)


def keep_meters(monkeypatch: pytest.MonkeyPatch, steps: int) -> list[Meter]:
    made: list[Meter] = []

    class Kept(Meter):
        def __init__(self, rest: Callable[[int], None]) -> None:
            super().__init__(steps, rest)
            made.append(self)

    monkeypatch.setattr(template_module, "Meter", Kept)
    return made


def test_there_are_two_hundred_hostile_templates_and_more() -> None:
    assert len(set(REFUSED)) >= 200 and len(set(BOUNDED)) >= 100


def named(sources: list[str]) -> list[object]:
    return [pytest.param(source, id=f"{i}-{source[:50]}") for i, source in enumerate(sources)]


@pytest.mark.parametrize("source", named(REFUSED))
def test_i01_a_template_that_reaches_or_makes_too_much_is_refused(source: str) -> None:
    try:
        text = ChatTemplate(source).render(TALK).text
    except TemplateError as error:
        assert 10 < len(str(error)) <= 500
    else:
        # Jinja prints what it does not hand out as nothing at all.
        assert text == "" or (len(text) < 200 and "<" not in text and "0x" not in text)


@pytest.mark.parametrize("source", named(BOUNDED))
def test_i01_work_is_bounded_by_the_steps_paid_for(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meters = keep_meters(monkeypatch, 5_000)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    compiled = ChatTemplate(source)
    sys.setprofile(count)
    try:
        compiled.render(TALK)
    except TemplateError:
        pass
    finally:
        sys.setprofile(None)
    # Calls of Python and C functions, which is what takes the time.
    assert calls <= 15 * min(meters[0].spent, meters[0].steps) + 5_000


@pytest.mark.slow
@pytest.mark.parametrize("source", named(BOUNDED))
def test_i01_memory_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI loops, which keep nothing from one turn to the next, have a quarter of the steps."""
    if source in LOOPS:
        keep_meters(monkeypatch, patience(STEPS_AT_START, in_ci=STEPS_AT_START // 4))
    compiled = ChatTemplate(source)
    rendered = 0
    tracemalloc.start()
    try:
        rendered = len(compiled.render(TALK).text)
    except TemplateError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert rendered <= MAX_TEXT
    assert peak <= 64 * 2**20


def test_i01_the_budget_is_the_same_on_every_run(meters: list[Meter]) -> None:
    template = ChatTemplate("{% for i in range(1000) %}{{ i }}{% endfor %}")
    for _ in range(2):
        template.render(TALK)
    assert meters[0].spent == meters[1].spent > 1000


def test_i01_the_budget_grows_with_the_input(meters: list[Meter]) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    template.render(from_dicts([{"role": "user", "content": "x" * 1_000_000}] * 4))
    template.render(TALK)
    assert meters[0].steps >= meters[1].steps + 4_000_000
    assert meters[0].spent < meters[0].steps / 50


def test_a_long_rendering_rests_so_that_other_threads_have_their_turns(
    meters: list[Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: a neighbour waits for 100 steps, be the rendering without end."""
    rests: list[int] = []
    seconds: list[float] = []

    def sleep(each: float) -> None:
        rests.append(meters[-1].spent)
        seconds.append(each)

    monkeypatch.setattr(meter_module, "sleep", sleep)
    ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").render(TALK)
    assert not rests, "a usual conversation is rendered without a break"
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError):
        ChatTemplate(endless).render(TALK)
    between = [after - before for before, after in pairwise(rests)]
    assert rests[0] <= 1001 and max(between) <= 110
    assert len(rests) >= (STEPS_AT_START - 1000) / 110
    short = [each for each, spent in zip(seconds, rests, strict=True) if spent <= 20_000]
    assert set(short) == {REST_SECONDS}, "a long talk is hardly slower"
    assert seconds == sorted(seconds) and seconds[-1] >= 10 * REST_SECONDS
    assert sum(seconds) < 2.5, "and there is an end to it"


def test_i01_a_spent_budget_stays_spent(meters: list[Meter]) -> None:
    with pytest.raises(TemplateError, match=r"line 2: it needs more than \d+ steps"):
        ChatTemplate("\n{% for i in range(100000) %}{{ i }}{{ i }}{{ i }}{% endfor %}").render(TALK)


def test_renderings_in_threads_have_budgets_of_their_own(meters: list[Meter]) -> None:
    template = ChatTemplate("{% for i in range(20000) %}{% set y = i %}{% endfor %}{{ bos_token }}")
    faults: list[BaseException] = []

    def render() -> None:
        try:
            template.render(TALK)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len({meter.spent for meter in meters}) == 1 and len(meters) == 4


def test_i01_no_environment_of_jinja_is_made_outside_the_sandbox() -> None:
    package = Path(cutaway.__file__).parent
    users: set[str] = set()
    made: set[tuple[str, str]] = set()
    for path in package.rglob("*.py"):
        name, text = path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")
        if not any(word in text for word in ("jinja2", "Environment", "Template")):
            continue  # most files: parsing them all takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import) and any(
                a.name.startswith("jinja2") for a in node.names
            ):
                users.add(name)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2"):
                users.add(name)
            if isinstance(node, ast.Call | ast.ClassDef):
                words = node.bases if isinstance(node, ast.ClassDef) else [node.func]
                said = [ast.unparse(word).split(".")[-1] for word in words]
                made |= {(name, word) for word in said if word.endswith("Environment")}
                made |= {(name, word) for word in said if word == "Template"}
    assert made == {("text/sandbox.py", "ImmutableSandboxedEnvironment")}
    assert users and all(user.startswith("text/") for user in users)
