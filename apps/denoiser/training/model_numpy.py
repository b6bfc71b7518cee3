"""The denoiser in plain NumPy, read from configs/denoiser.yaml and weights/denoiser.safetensors.

An independent reference: it shares no code with the engine or with the training script, and knows only the layers that
the denoiser uses. Prints PSNR of the held-out pictures.

    python model_numpy.py [--float64] [PICTURE.png ...]
"""

import argparse
import pathlib

import numpy as np
import yaml
from PIL import Image
from safetensors.numpy import load_file
from scipy.special import erf

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Model:
    def __init__(self, config=ROOT / "configs/denoiser.yaml", weights=ROOT / "weights/denoiser.safetensors", dtype=np.float32):
        self.layers = yaml.safe_load(pathlib.Path(config).read_text())["layers"]
        self.dtype = dtype
        self.weights = {name: w.astype(dtype) for name, w in load_file(weights).items()}

    def __call__(self, x):
        """x: [H, W, 4] as the head of the configuration says; returns [H, W, 3]."""
        return self.run(self.layers, x.astype(self.dtype), {})

    def run(self, layers, x, indices):
        for layer in layers:
            (kind, p), = layer.items()
            if kind == "repeat":
                for i in range(p["count"]):
                    x = self.run(p["layers"], x, indices | {p.get("index", "i"): i})
            else:
                def tensor(name):
                    return self.weights[p["tensors"].format(name=name, **indices)]
                x = getattr(self, kind)(x, p, tensor)
        return x

    def norm(self, x, p, tensor):
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred ** 2).mean(-1, keepdims=True) + self.dtype(p.get("eps", 1e-5)))
        return centred / scale * tensor("norm.weight") + tensor("norm.bias")

    def patch_embed(self, x, p, tensor):
        n = p["patch"]
        h, w, c = x.shape
        patches = x.reshape(h // n, n, w // n, n, c).transpose(0, 2, 1, 3, 4).reshape(h // n, w // n, n * n * c)
        return patches @ tensor("weight").T + tensor("bias")

    def patch_unembed(self, x, p, tensor):
        n, c = p["patch"], p["channels"]
        h, w, _ = x.shape
        y = (x @ tensor("weight").T + tensor("bias")).reshape(h, w, n, n, c)
        return y.transpose(0, 2, 1, 3, 4).reshape(h * n, w * n, c)

    def feed_forward(self, x, p, tensor):
        z = self.norm(x, p, tensor) @ tensor("up.weight").T + tensor("up.bias")
        z = z * (1 + erf(z / np.sqrt(self.dtype(2)))) / 2
        return x + z @ tensor("down.weight").T + tensor("down.bias")

    def axial_attention(self, x, p, tensor):
        if p["axis"] == "column":
            return self.axial_attention(x.transpose(1, 0, 2), p | {"axis": "row"}, tensor).transpose(1, 0, 2)
        heads, (rows, length, dim) = p["heads"], x.shape
        size = dim // heads
        angle = np.arange(length)[:, None] * float(p["rope"]["theta"]) ** (-2 * np.arange(size // 2) / size)
        cos, sin = np.cos(angle).astype(self.dtype), np.sin(angle).astype(self.dtype)

        def rope(t):
            a, b = t[..., :size // 2], t[..., size // 2:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        y = np.empty_like(x)
        normed = self.norm(x, p, tensor)
        for r in range(rows):
            qkv = normed[r] @ tensor("qkv.weight").T
            q, k, v = qkv.reshape(length, 3, heads, size).transpose(1, 2, 0, 3)
            scores = rope(q) @ rope(k).transpose(0, 2, 1) * self.dtype(size ** -0.5)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ v
            y[r] = mixed.transpose(1, 0, 2).reshape(length, dim) @ tensor("out.weight").T + tensor("out.bias")
        return x + y


def denoise(model, noisy, sigma):
    """8-bit picture ([H, W] or [H, W, 3]) in, 8-bit picture out."""
    grey = noisy.ndim == 2
    rgb = np.repeat(noisy[..., None], 3, -1) if grey else noisy
    h, w, _ = rgb.shape
    padded = np.pad(rgb, ((0, -h % 4), (0, -w % 4), (0, 0)), mode="reflect").astype(model.dtype)
    level = np.full(padded.shape[:2] + (1,), sigma / 50 - 0.5, model.dtype)
    noise = model(np.concatenate([padded / 255 - model.dtype(0.5), level], -1))[:h, :w]
    clean = noisy - sigma * (noise.mean(-1) if grey else noise)
    return np.clip(np.rint(clean), 0, 255).astype(np.uint8)


def psnr(a, b):
    return 10 * np.log10(255 ** 2 / np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))


def add_noise(clean, sigma, seed=0):
    noise = np.random.default_rng(seed).normal(0, sigma, clean.shape)
    return np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pictures", nargs="*", type=pathlib.Path)
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--sigma", nargs="+", type=float, default=[15, 25, 50])
    args = parser.parse_args()
    model = Model(dtype=np.float64 if args.float64 else np.float32)
    for path in args.pictures or sorted((ROOT / "apps/denoiser/pictures").glob("*.png")):
        clean = np.asarray(Image.open(path))
        for sigma in args.sigma:
            noisy = add_noise(clean, sigma)
            print(f"{path.stem:12} sigma {sigma:g}: {psnr(noisy, clean):.2f} -> "
                  f"{psnr(denoise(model, noisy, sigma), clean):.2f} dB", flush=True)


if __name__ == "__main__":
    main()
