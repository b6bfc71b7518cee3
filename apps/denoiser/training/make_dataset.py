"""Builds the training pictures of the denoiser from freely licensed packages.

Sources: Debian packages (wallpapers, educational and game data), wheels from PyPI (scikit-image, scikit-learn, SciPy
1.2.3, imgaug) and synthetic pictures drawn here. README.md beside this file lists each source with its licence.
Chelsea, coffee and camera of scikit-image are held out: they and their variants are never read here.

Each picture is shrunk by area averaging, so that sensor noise and compression artefacts vanish, and saved as a JPEG of
quality 90 or more without chroma subsampling (synthetic ones as lossless WebP). Groups, the prefix of a file's name, set how often
training draws from it: photo, art, texture, synthetic; valid is never trained on.

    python make_dataset.py OUTPUT_FOLDER [--work DOWNLOAD_FOLDER]

Needs apt-get and dpkg (a Debian 12 with its package lists), and numpy, pillow, scikit-image, scikit-learn.
"""

import argparse
import bz2
import fnmatch
import io
import pathlib
import subprocess
import sys
import zipfile

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Image.MAX_IMAGE_PIXELS = None

# package: [(group, pattern of the path, largest side after shrinking, least shrink factor)]
DEBIAN = {
    "lomiri-wallpapers-16.04": [("photo", "*_by_*.jpg", 1200, 1.5)],
    "lomiri-wallpapers-20.04": [("photo", "*_by_*.jpg", 1200, 1.5)],
    "mate-backgrounds": [("photo", "*/nature/*.jpg", 1200, 1.5), ("photo", "*/Elephants_5640*.jpg", 1200, 1.5)],
    "ukui-wallpapers": [("art", "*.jpg", 1000, 2), ("art", "*.png", 1000, 2)],
    "plasma-workspace-wallpapers": [("art", "*/images*/[2345]???x*.*", 1000, 2)],
    "gnome-backgrounds": [("art", "*-l.webp", 800, 2)],
    "digikam-data": [("photo", "*/body-background.jpg", 1200, 1.5)],
    "palapeli-data": [("photo", "*/collection/*.jpg", 1200, 1.5)],
    "stellarium-data": [("photo", f"*/landscapes/{n}", 1000, 1.5) for n in
                        ("hurricane/hurricane?.png", "garching/*.png", "guereins/guereins?.png", "ocean/ocean?.png",
                         "grossmugl/*.png", "mars/mars.png", "moon/apollo17.png")],
    "supertuxkart-data": [("texture", "*/data/tracks/*", 512, 2), ("texture", "*/data/library/*", 512, 2),
                          ("texture", "*/data/textures/*", 512, 2)],
}
# WebP photographs inside the resource files of GCompris: activity: least shrink factor
GCOMPRIS = {"erase": 1.8, "explore_monuments": 1.7, "explore_farm_animals": 1.7, "explore_world_animals": 1.7,
            "explore_world_music": 1.7}
SKIP_NAMES = ("normal", "_nm", "_n.", "gloss", "spec", "lightmap", "mask", "alpha", "data.png", "emit", "_mr")
SCIKIT_IMAGE = ("astronaut.png", "rocket.jpg", "motorcycle_left.png", "hubble_deep_field.jpg", "ihc.png", "coins.png",
                "page.png", "text.png", "moon.png", "grass.png", "gravel.png", "brick.png")
VALIDATION = ("Bridge_by_Sander_Klootwijk", "castle-maintenon")
HELD_OUT = ("chelsea", "coffee", "camera")


def flatten(picture):
    """RGB without transparency: the largest opaque rows are kept; None where too much is transparent."""
    if picture.mode in ("P", "LA", "PA"):
        picture = picture.convert("RGBA")
    if picture.mode == "RGBA":
        opaque = np.asarray(picture)[:, :, 3] > 250
        rows = np.flatnonzero(opaque.mean(1) > 0.999)
        if rows.size < 256 or np.any(np.diff(rows) != 1):
            return None
        picture = picture.crop((0, rows[0], picture.width, rows[-1] + 1))
    return picture.convert("RGB")


def shrink(picture, side, factor):
    factor = max(factor, max(picture.size) / side)
    size = [max(1, round(s / factor)) for s in picture.size]
    return picture if factor == 1 else picture.resize(size, Image.BOX if factor >= 3 else Image.LANCZOS)


def useful(picture, group):
    """Drops tiny pictures, almost flat ones and normal maps."""
    a = np.asarray(picture.resize((64, 64), Image.BOX), dtype=float)
    blue = a[..., 2].mean() > 200 and abs(a[..., 0].mean() - 128) < 25 and abs(a[..., 1].mean() - 128) < 25
    dark = (a.max(2) < 12).mean() > 0.3
    return min(picture.size) >= 200 and a.std() > (6 if group == "texture" else 3) and not blue and not dark


class Writer:
    def __init__(self, folder):
        self.folder, self.count, self.pixels, self.thumbnails = folder, {}, 0, []

    def add(self, group, name, picture, side=1200, factor=1.0):
        if any(h in name.lower() for h in HELD_OUT):
            return
        if any(v in name for v in VALIDATION):
            group = "valid"
        picture = flatten(picture)
        if picture is None:
            return
        picture = shrink(picture, side, factor)
        if not useful(picture, group):
            return
        thumbnail = np.asarray(picture.convert("L").resize((16, 16), Image.BOX), dtype=float)
        if any(np.abs(thumbnail - t).mean() < 3 for t in self.thumbnails):
            return  # the same picture in another size
        self.thumbnails.append(thumbnail)
        stem = f"{group}-{name}"
        if group == "synthetic":
            picture.save(self.folder / f"{stem}.webp", lossless=True, method=4)
        else:
            picture.save(self.folder / f"{stem}.jpg", quality=93 if group == "photo" else 90, subsampling=0)
        self.count[group] = self.count.get(group, 0) + 1
        self.pixels += picture.width * picture.height


def debian(package, work):
    """Downloads a Debian package, unpacks it, and returns the folder."""
    target = work / package
    if not target.exists():
        subprocess.run(["apt-get", "download", package], cwd=work, check=True, stdout=subprocess.DEVNULL)
        deb = sorted(work.glob(f"{package}_*.deb"))[-1]
        print(deb.name, flush=True)
        subprocess.run(["dpkg", "-x", str(deb), str(target)], check=True)
    return target


def wheel(requirement, work, python=None):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(work), requirement]
    name = requirement.split("==")[0]
    if not list(work.glob(f"{name}-*.whl")):
        subprocess.run(command + (["--python-version", python] if python else []), check=True)
    return zipfile.ZipFile(sorted(work.glob(f"{name}-*.whl"))[-1])


def from_debian(out, work):
    for package, rules in DEBIAN.items():
        root = debian(package, work)
        for path in sorted(root.rglob("*"), key=lambda p: (-p.stat().st_size if p.is_file() else 0, str(p))):
            if path.suffix.lower() not in (".jpg", ".jpeg", ".png", ".webp") or not path.is_file():
                continue
            for group, pattern, side, factor in rules:
                if not fnmatch.fnmatch(str(path), pattern):
                    continue
                if group == "texture" and (path.stat().st_size < 700_000
                                           or any(s in path.name.lower() for s in SKIP_NAMES)):
                    continue
                parts = path.relative_to(root).parts
                out.add(group, f"{package}-{'-'.join(parts[-4 if group == 'art' else -2:])}".rsplit(".", 1)[0],
                        Image.open(path), side, factor)
                break


def from_gcompris(out, work):
    root = debian("gcompris-qt-data", work)
    for activity, factor in GCOMPRIS.items():
        data = next(root.rglob(f"{activity}.rcc")).read_bytes()
        at = data.find(b"RIFF")
        number = 0
        while at >= 0:
            size = int.from_bytes(data[at + 4:at + 8], "little") + 8
            if data[at + 8:at + 12] == b"WEBP":
                picture = Image.open(io.BytesIO(data[at:at + size]))
                if picture.width * picture.height >= 500_000:
                    out.add("photo", f"gcompris-{activity}-{number:03}", picture, 1200, factor)
                number += 1
            at = data.find(b"RIFF", at + 4)


def from_wheels(out, work):
    import skimage
    import sklearn
    folder = pathlib.Path(skimage.__file__).parent / "data"
    for name in SCIKIT_IMAGE:
        path = folder / name
        if path.exists():
            group = "texture" if name in ("grass.png", "gravel.png", "brick.png") else "photo"
            out.add(group, f"skimage-{path.stem}", Image.open(path), 1200, 1.5 if path.suffix == ".jpg" else 1.0)
    for path in (pathlib.Path(sklearn.__file__).parent / "datasets" / "images").glob("*.jpg"):
        out.add("photo", f"sklearn-{path.stem}", Image.open(path))
    scipy = wheel("scipy==1.2.3", work, "3.7")
    face = np.frombuffer(bz2.decompress(scipy.read("scipy/misc/face.dat")), dtype=np.uint8).reshape(768, 1024, 3)
    out.add("photo", "scipy-face", Image.fromarray(face))
    imgaug = wheel("imgaug==0.4.0", work)
    out.add("photo", "imgaug-quokka", Image.open(io.BytesIO(imgaug.read("imgaug/quokka.jpg"))), 1200, 1.2)


def synthetic(rng, size=640):
    """Shapes, gradients, strokes, letters and stripes, drawn twice as large and shrunk (anti-aliased edges)."""
    big = 2 * size
    ramp = np.linspace(0, 1, big)[:, None] * rng.normal() + np.linspace(0, 1, big)[None] * rng.normal()
    ramp = (ramp - ramp.min()) / (np.ptp(ramp) + 1e-9)
    ends = rng.uniform(0, 255, (2, 3))
    picture = Image.fromarray((ends[0] + ramp[..., None] * (ends[1] - ends[0])).astype(np.uint8))
    draw = ImageDraw.Draw(picture, "RGBA")
    words = "axial attention row column grid patch noise light photograph warp weave 0123456789 &%$#@".split()

    def colour():
        return tuple(int(v) for v in rng.integers(0, 256, 3)) + (int(rng.choice([255, 255, rng.integers(60, 255)])),)

    for _ in range(int(rng.integers(20, 90))):
        kind = rng.integers(0, 6)
        x, y = (float(v) for v in rng.uniform(-0.1 * big, big, 2))
        w, h = (float(v) for v in rng.uniform(10, 0.4 * big, 2) * rng.choice([0.2, 0.5, 1]))
        if kind == 0:
            draw.rectangle((x, y, x + w, y + h), fill=colour())
        elif kind == 1:
            draw.ellipse((x, y, x + w, y + h), fill=colour())
        elif kind == 2:
            points = [tuple(p) for p in (np.array([x, y]) + rng.normal(0, w, (int(rng.integers(3, 7)), 2))).tolist()]
            draw.polygon(points, fill=colour())
        elif kind == 3:
            points = [tuple(p) for p in (np.array([x, y]) + np.cumsum(rng.normal(0, 40, (12, 2)), 0)).tolist()]
            draw.line(points, fill=colour(), width=int(rng.integers(2, 14)), joint="curve")
        elif kind == 4:
            font = ImageFont.load_default(size=int(rng.integers(18, 110)))
            text = "\n".join(" ".join(rng.choice(words, 6)) for _ in range(int(rng.integers(1, 5))))
            draw.text((x, y), text, fill=colour(), font=font)
        else:
            step, c = float(rng.uniform(6, 40)), colour()
            slope = float(rng.normal(0, 0.5))
            for i in range(int(rng.integers(4, 25))):
                draw.line((x + i * step, y, x + i * step + slope * h, y + h), fill=c, width=max(1, int(step / 2)))
    if rng.random() < 0.3:  # a soft part, as if out of focus
        mask = Image.new("L", picture.size, 0)
        ImageDraw.Draw(mask).ellipse(tuple(sorted(rng.uniform(0, big, 2)))[:1] * 2 + (big, big), fill=255)
        picture.paste(picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(2, 12)))), mask=mask)
    return picture


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/denoiser-downloads"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    out = Writer(args.output)
    from_wheels(out, args.work)
    from_gcompris(out, args.work)
    from_debian(out, args.work)
    rng = np.random.default_rng(1)
    for i in range(36):
        out.add("synthetic", f"{i:03}", synthetic(rng), 640, 2.0)
    size = sum(p.stat().st_size for p in args.output.iterdir())
    print(f"{out.count}: {out.pixels / 1e6:.0f} megapixels, {size / 1e6:.1f} MB in {args.output}")


if __name__ == "__main__":
    main()
