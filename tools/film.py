"""The film of one token as one animated picture, and as its frames.

    python tools/film.py [--into docs/pictures] [--frames FOLDER] [--question "What is gravity?"]

Asks the default model at temperature 0.7, where the draw has several pieces to choose from, opens
the room Follow one token, and takes what it shows at chosen seconds. The animated picture is an
APNG, put together here from the frames that the browser gave; --frames keeps each of these as a PNG
named by its second. Needs the page (make web), playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pictures import FLAGS, LONGEST_MS, QUESTION, ROOT, served
from playwright.sync_api import FloatRect, Page, Route, sync_playwright

SIZE = {"width": 960, "height": 800}
PARTS = ("screen", "caption")
SEED = 1
# Seconds of the film that are frames, and how long each stands, in hundredths of a second.
FRAMES = (
    *((0.8, 20), (1.6, 75)),
    *((6.0, 30), (8.4, 90)),
    *((9.6, 25), (13.0, 95)),
    *((15.0, 45), (16.2, 35), (18.2, 90)),
    *((19.4 + 0.95 * step, 18) for step in range(8)),
    (27.4, 60),
    *((28.8, 30), (31.9, 100)),
    *((33.2, 25), (33.8, 25), (34.3, 25), (35.9, 110)),
    *((36.9 + 0.45 * step, 14) for step in range(12)),
    (42.6, 100),
)
SIGN = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, body: bytes) -> bytes:
    """A part of a PNG as its bytes."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def animated(palette: np.ndarray, frames: Sequence[tuple[np.ndarray, int]]) -> bytes:
    """Pictures of one size as one APNG that repeats; with each its hundredths of a second.

    Layout as the PNG specification (third edition, 2025) has it: acTL, then fcTL before each frame,
    whose data is IDAT in the first and fdAT with a running number in all others. Behind the first a
    frame is what changed.

    Shapes: palette [colours, 3], pictures [height, width], both uint8.
    """
    before = frames[0][0] + 1  # nothing of the first is there yet
    header = struct.pack(">IIBBBBB", before.shape[1], before.shape[0], 8, 3, 0, 0, 0)
    made = SIGN + chunk(b"IHDR", header) + chunk(b"acTL", struct.pack(">II", len(frames), 0))
    made += chunk(b"PLTE", palette.tobytes())
    number = 0
    for picture, time in frames:
        rows, columns = ((picture != before).any(axis).nonzero()[0] for axis in (1, 0))
        top, left = (int(each[0]) if each.size else 0 for each in (rows, columns))
        part = picture[top : rows[-1] + 1, left : columns[-1] + 1] if rows.size else picture[:1, :1]
        place = (part.shape[1], part.shape[0], left, top)
        made += chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, *place, time, 100, 0, 0))
        lines = np.pad(part, ((0, 0), (1, 0)))  # no filter: a palette's numbers are no sizes
        data = zlib.compress(lines.tobytes(), 9)
        is_first = number == 0
        made += (
            chunk(b"IDAT", data)
            if is_first
            else chunk(b"fdAT", struct.pack(">I", number + 1) + data)
        )
        number, before = number + (1 if is_first else 2), picture
    return made + chunk(b"IEND", b"")


# Gives the pixels of a PNG as base64: the browser knows how to read what it wrote.
PIXELS = """async (data) => {
  const file = await fetch(`data:image/png;base64,${data}`);
  const image = await createImageBitmap(await file.blob());
  const pen = new OffscreenCanvas(image.width, image.height).getContext('2d');
  pen.drawImage(image, 0, 0);
  const found = pen.getImageData(0, 0, image.width, image.height).data;
  let text = '';
  for (let at = 0; at < found.length; at += 32768)
    text += String.fromCharCode(...found.subarray(at, at + 32768));
  return [image.width, image.height, btoa(text)];
}"""


def painted(page: Page, pictures: Sequence[bytes]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The same pictures in one palette of 256 colours, a third of their size.

    Colours are rounded to steps of 8; of those that are left the rarest take their nearest.

    Shapes: palette [256, 3], pictures [height, width], both uint8.
    """
    pixels: list[np.ndarray] = []
    for data in pictures:
        width, height, told = page.evaluate(PIXELS, base64.b64encode(data).decode())
        rows = np.frombuffer(base64.b64decode(told), np.uint8).reshape(height, width, 4)[..., :3]
        pixels.append(np.minimum(255, (rows.astype(np.int32) + 4) // 8 * 8))
    codes = [(each[..., 0] << 16) | (each[..., 1] << 8) | each[..., 2] for each in pixels]
    known, counts = np.unique(np.concatenate([each.ravel() for each in codes]), return_counts=True)
    palette = known[np.argsort(-counts, kind="stable")[:256]]
    channels = np.stack([palette >> 16, palette >> 8 & 255, palette & 255], axis=-1)
    own = np.stack([known >> 16, known >> 8 & 255, known & 255], axis=-1)
    far = ((own[:, None, :] - channels[None, :, :]) ** 2).sum(-1)
    nearest = far.argmin(-1).astype(np.uint8)
    return channels.astype(np.uint8), [nearest[np.searchsorted(known, each)] for each in codes]


def film(page: Page) -> Iterator[tuple[float, int, bytes]]:
    """Second, hundredths of a second, and the picture of each frame."""
    page.get_by_role("button", name="Pause").click()
    clock = page.get_by_label("Second of the film")
    screen, caption = (page.locator(f".journey .{name}").bounding_box() for name in PARTS)
    assert screen is not None and caption is not None, "both are seen"
    clip = FloatRect(
        x=screen["x"],
        y=screen["y"],
        width=screen["width"],
        height=caption["y"] + caption["height"] - screen["y"],
    )
    for second, time in FRAMES:
        clock.evaluate(
            "(input, second) => { input.value = second;"
            " input.dispatchEvent(new Event('input', {bubbles: true})) }",
            second,
        )
        page.wait_for_timeout(150)
        yield second, time, page.screenshot(clip=clip)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the film of one token.")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--frames", type=Path, help="keep each frame in this folder")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)

    def draw(route: Route) -> None:
        asked = json.loads(route.request.post_data or "")
        settings = {"temperature": 0.7, "top_p": 1, "top_k": 0, "min_p": 0, "seed": options.seed}
        route.continue_(post_data=json.dumps({**asked, **settings}))

    with served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.set_default_timeout(LONGEST_MS)
        page.route("**/v1/chat/completions", draw)
        page.goto(server.address)
        page.get_by_label("Your message").fill(options.question)
        page.get_by_role("button", name="Send", disabled=False).click()
        page.get_by_role("button", name="Follow a token").click()
        page.locator(".journey[data-whole=true]").wait_for()
        taken = list(film(page))
        palette, pictures = painted(browser.new_page(), [data for _, _, data in taken])
        browser.close()
    for second, _, data in taken if options.frames else ():
        options.frames.mkdir(parents=True, exist_ok=True)
        (options.frames / f"{second:04.1f}.png").write_bytes(data)
    into = options.into / "journey.png"
    times = [time for _, time, _ in taken]
    into.write_bytes(animated(palette, list(zip(pictures, times, strict=True))))
    size = f"{into.stat().st_size / 1024:.0f} KiB"
    print(f"{into}: {len(taken)} frames, {sum(times) / 100:.1f} s, {size}")


if __name__ == "__main__":
    main()
