"""The film of one token as pictures: a still of every scene, and one animated picture of all.

    python tools/film.py [--into docs/pictures] [--question "What is gravity?"]

Asks the default model, opens the room Follow one token, and takes what it shows at chosen seconds.
The animated picture is an APNG, put together here from the frames that the browser gave. Needs the
page (make web), playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pictures import FLAGS, LONGEST_MS, QUESTION, ROOT, served
from playwright.sync_api import FloatRect, Page, sync_playwright

SIZE = {"width": 760, "height": 780}
PARTS = ("screen", "caption")
# Seconds of the film that are frames, and how long each stands, in hundredths of a second.
FRAMES = (
    *((second, 55) for second in (0.8, 1.6, 3.6)),
    *((second, 60) for second in (6.0, 8.6, 11.0, 13.0)),
    *((second, 60) for second in (15.0, 16.2, 18.4)),
    *((19.4 + 1.1 * step, 35) for step in range(7)),
    (27.6, 110),
    *((second, 60) for second in (29.0, 31.9)),
    *((second, 45) for second in (33.2, 34.2, 35.9)),
    *((37.2 + 0.7 * step, 40) for step in range(7)),
    (42.6, 160),
)
SIGN = b"\x89PNG\r\n\x1a\n"


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and body of each part of a PNG."""
    at = len(SIGN)
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        at += 12 + size


def chunk(kind: bytes, body: bytes) -> bytes:
    """A part of a PNG as its bytes."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def animated(frames: Sequence[tuple[bytes, int]]) -> bytes:
    """PNGs of one size and kind as one APNG that repeats; with each its hundredths of a second.

    Layout as the PNG specification (third edition, 2025) has it: acTL, then fcTL before each frame,
    whose data is IDAT in the first and fdAT with a running number in all others.
    """
    headers = {next(body for kind, body in chunks(data) if kind == b"IHDR") for data, _ in frames}
    assert len(headers) == 1, "all frames have one size and one kind"
    (header,) = headers
    width, height = struct.unpack(">II", header[:8])
    made = SIGN + chunk(b"IHDR", header) + chunk(b"acTL", struct.pack(">II", len(frames), 0))
    made += b"".join(chunk(kind, body) for kind, body in chunks(frames[0][0]) if kind == b"PLTE")
    number = 0
    for index, (data, time) in enumerate(frames):
        control = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, time, 100, 0, 0)
        made += chunk(b"fcTL", control)
        number += 1
        for kind, body in chunks(data):
            if kind != b"IDAT":
                continue
            if index == 0:
                made += chunk(b"IDAT", body)
            else:
                made += chunk(b"fdAT", struct.pack(">I", number) + body)
                number += 1
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


def painted(page: Page, pictures: Sequence[bytes]) -> list[bytes]:
    """The same pictures in one palette of 256 colours, a third of their size.

    Colours are rounded to steps of 8; of those that are left the rarest take their nearest.
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
    made: list[bytes] = []
    for each in codes:
        indices = nearest[np.searchsorted(known, each)]
        lines = np.pad(indices, ((0, 0), (1, 0)))  # no filter: a palette's numbers are no sizes
        header = struct.pack(">IIBBBBB", each.shape[1], each.shape[0], 8, 3, 0, 0, 0)
        colours = channels.astype(np.uint8).tobytes()
        data = zlib.compress(lines.astype(np.uint8).tobytes(), 9)
        parts = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", data), (b"IEND", b""))
        made.append(SIGN + b"".join(chunk(kind, body) for kind, body in parts))
    return made


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
    parser.add_argument("--question", default=QUESTION)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.set_default_timeout(LONGEST_MS)
        page.goto(server.address)
        page.get_by_label("Your message").fill(options.question)
        page.get_by_role("button", name="Send", disabled=False).click()
        page.get_by_role("button", name="Follow a token").click()
        page.locator(".journey[data-whole=true]").wait_for()
        taken = list(film(page))
        pictures = painted(browser.new_page(), [data for _, _, data in taken])
        browser.close()
    into = options.into / "journey.png"
    times = [time for _, time, _ in taken]
    into.write_bytes(animated(list(zip(pictures, times, strict=True))))
    print(f"{into}: {len(taken)} frames, {into.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
