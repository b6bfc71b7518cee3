"""Scores `warpweave denoise` on the held-out pictures against scikit-image's non-local means and wavelet denoising.

Noise: NumPy's default_rng(0), clipped and rounded to 8 bits. The two baselines estimate sigma with scikit-image's
estimate_sigma, and are given the best of several settings per picture, chosen by looking at the clean picture: non-local
means with and without fast_mode, h = 0.6 to 1.2 times the estimate; wavelets with BayesShrink and VisuShrink, with and
without YCbCr. Ours is run twice: with sigma given, and with --sigma left out, so that it estimates sigma too.

    python score.py [--warpweave PROGRAM] [--sigma 25] [--option=--device=cpu ...]

Needs numpy, scipy, scikit-image, PyWavelets and pillow.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image
from skimage import restoration

ROOT = pathlib.Path(__file__).resolve().parents[3]


def psnr(a, b):
    return 10 * np.log10(255 ** 2 / np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))


def eight_bit(x):
    return np.clip(np.rint(x * 255), 0, 255).astype(np.uint8)


def best_non_local_means(noisy, clean):
    x, axis = noisy / 255.0, -1 if noisy.ndim == 3 else None
    sigma = float(np.mean(restoration.estimate_sigma(x, channel_axis=axis)))
    return max(psnr(eight_bit(restoration.denoise_nl_means(x, patch_size=5, patch_distance=6, h=factor * sigma, sigma=sigma,
                                                           fast_mode=fast, channel_axis=axis)), clean)
               for fast in (True, False) for factor in (0.6, 0.8, 1.0, 1.2))


def best_wavelet(noisy, clean):
    x, axis = noisy / 255.0, -1 if noisy.ndim == 3 else None
    return max(psnr(eight_bit(restoration.denoise_wavelet(x, method=method, mode="soft", rescale_sigma=True,
                                                          convert2ycbcr=ycbcr, channel_axis=axis)), clean)
               for method in ("BayesShrink", "VisuShrink") for ycbcr in ((False, True) if axis else (False,)))


def ours(program, source, target, options):
    subprocess.run([program, "denoise", source, target, "--quiet", *options], check=True,
                   stdout=subprocess.DEVNULL)
    return np.asarray(Image.open(target))


def find_program():
    found = [p for p in (ROOT / "build").rglob("warpweave") if p.is_file() and p.stat().st_mode & 0o111]
    if not found:
        sys.exit("no warpweave under build/: build it, or name it with --warpweave")
    return max(found, key=lambda p: p.stat().st_mtime)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--warpweave", type=pathlib.Path)
    parser.add_argument("--sigma", type=float, default=25)
    parser.add_argument("--option", action="append", default=[], help="passed on to warpweave, like --option=--device=cpu")
    args = parser.parse_args()
    program = args.warpweave or find_program()
    columns = ("noisy", "nl-means", "wavelet", "ours, sigma given", "ours, sigma estimated")
    print(f"PSNR in dB, sigma {args.sigma:g}\n{'picture':10}" + "".join(f"{c:>23}" for c in columns), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source, target = (str(pathlib.Path(folder) / n) for n in ("noisy.png", "denoised.png"))
        for path in sorted((ROOT / "apps/denoiser/pictures").glob("*.png")):
            clean = np.asarray(Image.open(path))
            noise = np.random.default_rng(0).normal(0, args.sigma, clean.shape)
            noisy = np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(source)
            rows.append([psnr(noisy, clean), best_non_local_means(noisy, clean), best_wavelet(noisy, clean),
                         psnr(ours(program, source, target, [f"--sigma={args.sigma:g}", *args.option]), clean),
                         psnr(ours(program, source, target, args.option), clean)])
            print(f"{path.stem:10}" + "".join(f"{v:23.2f}" for v in rows[-1]), flush=True)
    print(f"{'mean':10}" + "".join(f"{v:23.2f}" for v in np.mean(rows, axis=0)))


if __name__ == "__main__":
    main()
