// Markdown while it is written: blocks that stay, HTML that stays text, formulas, and where each character came from.
import { describe, expect, it } from "vitest";

import { Aligner, Blocks } from "./markdown";

const html = (text: string): string => new Blocks().of(text).map((block) => block.html).join("");

const TEXT = "# Gravity\n\nIt *pulls* `mass`:\n\n1. one\n2. two\n\n   more\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd.";

describe("blocks", () => {
  it("are the same however the text came, and settled ones are kept", () => {
    const whole = new Blocks().of(TEXT);
    const growing = new Blocks();
    let first = growing.of(TEXT.slice(0, 20))[0];
    for (let cut = 20; cut <= TEXT.length; cut += 1) {
      const blocks = growing.of(TEXT.slice(0, cut));
      if (cut > 20) expect(blocks[0]).toBe(first);
      first = blocks[0];
    }
    expect(growing.of(TEXT)).toEqual(whole);
    for (const block of whole) expect(TEXT.startsWith(block.raw, block.start)).toBe(true);
  });

  it("leave HTML as text, and links only to the web", () => {
    expect(html("<img src=x onerror=alert(1)>")).not.toContain("<img");
    expect(html("a <b onclick=x>b</b>")).toContain("&lt;b onclick=x&gt;");
    expect(html("[a](javascript:alert(1))")).not.toContain("href");
    expect(html("![p](https://a.example/x.png)")).toContain('<a href="https://a.example/x.png"');
    expect(html('[a](https://a.example/"onx=)')).not.toContain('"onx');
    expect(html("```\"><script>\nx\n```")).not.toContain("<script");
  });

  it("find formulas and leave prices", () => {
    expect(html("so \\(a_1\\) and $E=mc^2$.")).toContain('data-tex="a_1"');
    expect(html("so $E=mc^2$.")).toContain('data-tex="E=mc^2"');
    expect(html("$$\n\\frac{1}{2}\n$$")).toContain("formula wide");
    expect(html("\\[\nx < y\n\\]")).toContain("x &lt; y");
    expect(html("it costs $5 and $6, `$a$`")).not.toContain("data-tex");
  });
});

describe("characters", () => {
  it("are found in the source over markup", () => {
    const source = "It *pulls* [mass](https://a.example/) &amp; **all**";
    const aligner = new Aligner(source);
    for (const text of ["It ", "pulls", " ", "mass", "all"]) {
      const offsets = aligner.next(text);
      if (text.trim()) expect(offsets.map((at) => source[at]).join("")).toBe(text);
    }
  });
});
