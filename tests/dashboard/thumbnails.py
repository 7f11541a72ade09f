"""Compare screenshots with stored pictures, roughly: text, numbers and times may differ, the layout may not.

A screenshot is shrunk to a few cells, each the mean colour of its area. A picture matches if few cells differ
visibly. After an intended change, `UPDATE_PICTURES=1 pytest tests/dashboard/test_pictures.py` stores new ones.
"""

import base64
import os
from pathlib import Path

from playwright.sync_api import Page

FOLDER = Path(__file__).parent / "pictures"
MOST_DIFFERENT = 0.08
"""The share of cells that may differ."""
_SHRINK = """async (screenshot) => {
    const image = await createImageBitmap(await (await fetch(screenshot)).blob());
    const width = 64, height = Math.max(1, Math.round((width * image.height) / image.width));
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const whole = new OffscreenCanvas(image.width, image.height).getContext("2d", { willReadFrequently: true });
    whole.drawImage(image, 0, 0);
    const small = context.createImageData(width, height);
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++) {
        const left = Math.floor((x * image.width) / width), top = Math.floor((y * image.height) / height);
        const right = Math.max(left + 1, Math.floor(((x + 1) * image.width) / width));
        const bottom = Math.max(top + 1, Math.floor(((y + 1) * image.height) / height));
        const { data } = whole.getImageData(left, top, right - left, bottom - top);
        const sum = [0, 0, 0];
        for (let at = 0; at < data.length; at += 4) for (let part = 0; part < 3; part++) sum[part] += data[at + part];
        for (let part = 0; part < 3; part++) small.data[(y * width + x) * 4 + part] = (sum[part] * 4) / data.length;
        small.data[(y * width + x) * 4 + 3] = 255;
      }
    context.putImageData(small, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/png" });
    return await new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(blob);
    });
}"""
_COMPARE = """async ([first, second]) => {
    const [a, b] = await Promise.all([first, second].map(async (picture) => {
        const image = await createImageBitmap(await (await fetch(picture)).blob());
        const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.width, image.height);
    }));
    if (a.width !== b.width || a.height !== b.height) return 1;
    let different = 0;
    for (let at = 0; at < a.data.length; at += 4)
      if ([0, 1, 2].some((part) => Math.abs(a.data[at + part] - b.data[at + part]) > 16)) different++;
    return (different * 4) / a.data.length;
}"""


def difference(blank: Page, screenshot: bytes, name: str) -> float:
    """Return the share of cells in which a screenshot differs from the picture `name`; `blank` is an empty page."""
    small = blank.evaluate(_SHRINK, _url(screenshot))
    stored = FOLDER / f"{name}.png"
    if os.environ.get("UPDATE_PICTURES"):
        FOLDER.mkdir(exist_ok=True)
        stored.write_bytes(base64.b64decode(small.partition(",")[2]))
    share: float = blank.evaluate(_COMPARE, [small, _url(stored.read_bytes())])
    return share


def _url(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()
