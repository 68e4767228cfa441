"""Fifty texts that would run code where a page took them for HTML, and what tells that one did.

Those below are known ones; the plan has 200 more, fifty at a time, put together by a seed.
"""

from __future__ import annotations

from random import Random

from trials import IN_FULL, seed

RUN = "window.ran=1"

KNOWN = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src=x onerror='{RUN}'>",
    f'<img src="x" onerror="{RUN}">',
    f"<IMG SRC=x OnErRoR={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><set onbegin={RUN} attributename=x>",
    f"<svg><a xlink:href='javascript:{RUN}'><text>x</text></a></svg>",
    f"<svg><foreignObject><img src=x onerror={RUN}></foreignObject></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<math href='javascript:{RUN}'>x</math>",
    f"<iframe src='javascript:{RUN}'></iframe>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<object data='javascript:{RUN}'></object>",
    f"<embed src='javascript:{RUN}'>",
    f"<body onload={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<audio src=x onerror={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}>",
    f"<textarea autofocus onfocus={RUN}></textarea>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<marquee onstart={RUN}>x</marquee>",
    f"<form action='javascript:{RUN}'><button>x</button></form>",
    f"<button formaction='javascript:{RUN}' form=x>x</button>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    "<base href='https://elsewhere.example/'>",
    "<link rel=stylesheet href='https://elsewhere.example/x.css'>",
    "<style>@import 'https://elsewhere.example/x.css';</style>",
    f"<div style='animation-name:x' onanimationstart={RUN}>x</div>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt:{RUN})",
    f"[x](java\tscript:{RUN})",
    f"[x](&#106;avascript:{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    f"[x](vbscript:{RUN})",
    f"![x](x' onerror='{RUN})",
    f'![x]("onerror="{RUN})',
    "![x](https://elsewhere.example/pixel.png)",
    f"<javascript:{RUN}>",
    f"[x]: javascript:{RUN}\n[x]",
    f'```"><img src=x onerror={RUN}>\nx\n```',
    f"`<img src=x onerror={RUN}>`",
    f"$\\href{{javascript:{RUN}}}{{x}}$",
    f"$$\\htmlData{{x=1}}{{<img src=x onerror={RUN}>}}$$",
    f"| <img src=x onerror={RUN}> |\n|---|\n| <script>{RUN}</script> |",
    f"</p></div></textarea></title></script><script>{RUN}</script>",
)


TAGS = "img svg video audio iframe object embed input select textarea details body form".split()
EVENTS = "onerror onload onfocus onclick ontoggle onmouseover onanimationstart onbegin".split()
WRAPPED = (
    *("{}", "</textarea>{}", "</title>{}", "--><!-- -->{}", "<!--{}-->", "<![CDATA[{}]]>", "`{}`"),
    *("**{}**", "> {}", "- {}", "# {}", "| {} |\n|---|", "[{}](x)", "![{}](x)", "<p title='{}'>"),
    *("\u202e{}", "\x00{}", "<\x00script>{}", "%3Cscript%3E{}", "&lt;script&gt;{}", "$${}$$"),
)
SCHEMES = ("javascript:", "JaVa\tscript:", "\x01javascript:", "data:text/html,", "vbscript:")


def drawn(number: int) -> tuple[str, ...]:
    """Fifty of 200 more, no two alike: tags with handlers and links of every scheme, wrapped."""
    chance, made = Random(20), dict[str, None]()
    while len(made) < 200:
        tag, event, quote = chance.choice(TAGS), chance.choice(EVENTS), chance.choice("'\"` ")
        what = chance.choice(
            (
                f"<{tag} src=x {event}={quote}{RUN}{quote} autofocus open>",
                f"<{tag}/{event}={RUN}//",
                f"<{tag.upper()} {event.upper()}\n=\n{quote}{RUN}{quote}>x</{tag}>",
                f"<a href={quote}{chance.choice(SCHEMES)}{RUN}{quote}>x</a>",
                f"[x]({chance.choice(SCHEMES)}{RUN})",
                f"<svg><{tag} {event}={RUN}></svg>",
                f"<script>{RUN}</script>",
            )
        )
        text = chance.choice(WRAPPED).format(what)
        if text not in KNOWN:
            made[text] = None
    return tuple(made)[50 * (number - 2) : 50 * (number - 1)]


_PART = (seed(1) - 1) % 5 + 1  # five seeds in a row try all 250
PAYLOADS = KNOWN if not IN_FULL or _PART == 1 else drawn(_PART)
