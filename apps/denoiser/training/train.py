"""Trains the denoiser of configs/denoiser.yaml with PyTorch and writes weights/denoiser.safetensors (float16).

The model is patch embedding, 8 x (row attention, column attention, feed-forward), norm, patch output; it predicts the
noise divided by its standard deviation. Pictures come from make_dataset.py; all of them are kept in GPU memory as bytes
and cropped there. Crops of many shapes, thin ones of 2048 pixels and squares of 1024 among them, teach the rotary
positions lengths that a full photograph needs.

    python train.py DATASET_FOLDER OUTPUT.safetensors [--minutes 9] [--held-out apps/denoiser/pictures]

At the end the script prints PSNR of full-size pictures in float32: a report, never used to choose anything.
"""

import argparse
import math
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.numpy import save_file
from torch import nn

PATCH, DIM, HEADS, HIDDEN, BLOCKS, THETA = 4, 128, 4, 384, 8, 100.0
GROUPS = {"photo": 0.64, "art": 0.08, "texture": 0.14, "synthetic": 0.14}  # how often a crop comes from each group
SHAPES = [(128, 128, 0.35), (256, 256, 0.25), (512, 512, 0.1), (64, 1024, 0.07), (1024, 64, 0.07), (32, 2048, 0.03),
          (2048, 32, 0.03), (1024, 1024, 0.1)]


# --- the model -------------------------------------------------------------------------------------------------------
def rope_tables(length, device):
    half = DIM // HEADS // 2
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * THETA ** (
        -torch.arange(half, device=device, dtype=torch.float32) / half)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def attention(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v)
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        for axis in ("row", "col"):
            setattr(self, f"{axis}_norm", nn.LayerNorm(DIM))
            setattr(self, f"{axis}_qkv", nn.Linear(DIM, 3 * DIM, bias=False))
            setattr(self, f"{axis}_out", nn.Linear(DIM, DIM))
        self.ff_norm = nn.LayerNorm(DIM)
        self.ff_up = nn.Linear(DIM, HIDDEN)
        self.ff_down = nn.Linear(HIDDEN, DIM)

    def attend(self, x, norm, qkv, out, cos, sin):
        b, h, w, _ = x.shape
        q, k, v = qkv(norm(x)).view(b * h, w, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return x + out(y.transpose(1, 2).reshape(b, h, w, DIM))

    def forward(self, x, row_cos, row_sin, col_cos, col_sin):
        x = self.attend(x, self.row_norm, self.row_qkv, self.row_out, row_cos, row_sin)
        x = self.attend(x.transpose(1, 2).contiguous(), self.col_norm, self.col_qkv, self.col_out, col_cos, col_sin)
        x = x.transpose(1, 2)
        return x + self.ff_down(F.gelu(self.ff_up(self.ff_norm(x))))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH * 4, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.final_norm = nn.LayerNorm(DIM)
        self.unembed = nn.Linear(DIM, PATCH * PATCH * 3)
        for block in self.blocks:
            for layer in (block.row_out, block.col_out, block.ff_down):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, noisy, sigma, bf16=False):
        """noisy: [B, H, W, 3] in 0..255, sides multiples of 4; sigma: [B] in the same unit. Returns the noise / sigma."""
        b, height, width, _ = noisy.shape
        h, w, p = height // PATCH, width // PATCH, PATCH
        x = torch.cat([noisy / 255 - 0.5, (sigma / 50 - 0.5)[:, None, None, None].expand(b, height, width, 1)], -1)
        x = x.view(b, h, p, w, p, 4).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, p * p * 4)
        x = self.embed(x)  # in float32, as the output: 5/255 of noise must not drown in rounding
        tables = rope_tables(w, x.device) + rope_tables(h, x.device)
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=bf16):
            for block in self.blocks:
                x = block(x, *tables)
        y = self.unembed(self.final_norm(x.float()))
        return y.view(b, h, w, p, p, 3).permute(0, 1, 3, 2, 4, 5).reshape(b, height, width, 3)


# --- pictures --------------------------------------------------------------------------------------------------------
class Pictures:
    """All training pictures in one byte tensor; crops are gathered by index, with reflection past the borders."""

    def __init__(self, folder, device):
        files = [f for f in sorted(pathlib.Path(folder).iterdir()) if f.name.split("-")[0] in GROUPS]
        with ThreadPoolExecutor(16) as pool:
            arrays = list(pool.map(lambda f: np.asarray(Image.open(f).convert("RGB")), files))
        groups = [f.name.split("-")[0] for f in files]
        area = np.array([a.shape[0] * a.shape[1] for a in arrays]) ** 0.5
        weight = np.array([GROUPS[g] / area[[g == o for o in groups]].sum() for g in groups]) * area
        self.weight = torch.tensor(weight, device=device, dtype=torch.float32)
        self.height = torch.tensor([a.shape[0] for a in arrays], device=device)
        self.width = torch.tensor([a.shape[1] for a in arrays], device=device)
        sizes = np.array([0] + [a.size // 3 for a in arrays])
        self.start = torch.tensor(np.cumsum(sizes)[:-1], device=device)
        self.bytes = torch.from_numpy(np.concatenate([a.reshape(-1, 3) for a in arrays])).to(device)
        self.device = device
        print(f"{len(files)} pictures, {len(self.bytes) / 1e6:.0f} megapixels", flush=True)

    def uniform(self, n, low=0.0, high=1.0):
        return torch.rand(n, device=self.device) * (high - low) + low

    def clean(self, b, h, w, zoom):
        """[b, h, w, 3] float32 in 0..255: crops with flips, transposes, colour changes; zoom shrinks by area."""
        ch, cw = math.ceil(h * zoom), math.ceil(w * zoom)
        which = torch.multinomial(self.weight, b, replacement=True)
        height, width = self.height[which][:, None, None], self.width[which][:, None, None]
        i = torch.arange(ch, device=self.device)[None, :, None].expand(b, ch, cw)
        j = torch.arange(cw, device=self.device)[None, None, :].expand(b, ch, cw)
        flip = self.uniform((3, b, 1, 1)) < 0.5
        i, j = torch.where(flip[0], ch - 1 - i, i), torch.where(flip[1], cw - 1 - j, j)
        i, j = torch.where(flip[2], j, i), torch.where(flip[2], i, j)
        size = torch.tensor([ch, cw], device=self.device)[:, None, None, None]
        tall, wide = torch.where(flip[2], size[1], size[0]), torch.where(flip[2], size[0], size[1])
        i = i + (self.uniform((b, 1, 1)) * (height - tall + 1).clamp(min=1)).long()
        j = j + (self.uniform((b, 1, 1)) * (width - wide + 1).clamp(min=1)).long()
        i, j = i % (2 * height - 2), j % (2 * width - 2)
        i, j = torch.minimum(i, 2 * height - 2 - i), torch.minimum(j, 2 * width - 2 - j)
        x = self.bytes[self.start[which][:, None, None] + i * width + j].float()
        if zoom != 1:
            x = F.interpolate(x.permute(0, 3, 1, 2), (h, w), mode="bilinear", antialias=True).permute(0, 2, 3, 1)
        order = torch.argsort(self.uniform((b, 3)), 1)[:, None, None, :].expand(b, h, w, 3)
        x = torch.gather(x, 3, order)
        x = (x - 128) * self.uniform((b, 1, 1, 1), 0.6, 1.1) + 128 + self.uniform((b, 1, 1, 1), -30, 30)
        grey = (x * torch.tensor([0.299, 0.587, 0.114], device=self.device)).sum(-1, keepdim=True)
        self.grey = self.uniform((b, 1, 1, 1)) < 0.3
        return torch.where(self.grey, grey, x).clamp(0, 255)

    def batch(self, b, h, w, zoom):
        """clean, noisy, sigma, and the sigma that the model is told (10 % off at most)."""
        clean = self.clean(b, h, w, zoom)
        noise = torch.randn(b, h, w, 3, device=self.device)
        noise = torch.where(self.grey, noise[..., :1], noise)
        sigma = self.uniform(b, 4, 52)
        noisy = clean + sigma[:, None, None, None] * noise
        eight_bit = self.uniform((b, 1, 1, 1)) < 0.5
        noisy = torch.where(eight_bit, noisy.clamp(0, 255).round(), noisy)
        clean = torch.where(eight_bit, clean.round(), clean)
        return clean, noisy, sigma, sigma * self.uniform(b, 0.9, 1.1)


# --- optimisation ----------------------------------------------------------------------------------------------------
class Muon:
    """Momentum whose update is orthogonalised by Newton-Schulz iterations, for the matrices of the blocks."""

    def __init__(self, matrices):
        self.groups = {}
        for p in matrices:
            parts = 3 if getattr(p, "packed", False) else 1  # q, k and v are separate matrices
            for k in range(parts):
                self.groups.setdefault((p.shape[0] // parts, p.shape[1]), []).append((p, k, parts))
        self.momentum = {s: None for s in self.groups}

    @torch.no_grad()
    def step(self, rate):
        for shape, members in self.groups.items():
            grads = torch.stack([p.grad.view(parts, *shape)[k] for p, k, parts in members])
            if self.momentum[shape] is None:
                self.momentum[shape] = torch.zeros_like(grads)
            self.momentum[shape].lerp_(grads, 0.05)
            u = grads.lerp(self.momentum[shape], 0.95)
            u = u.transpose(1, 2) if shape[0] > shape[1] else u
            u = (u / (u.norm(dim=(1, 2), keepdim=True) + 1e-12)).to(torch.bfloat16)
            for _ in range(5):
                a = u @ u.transpose(1, 2)
                u = 3.4445 * u + (-4.775 * a + 2.0315 * (a @ a)) @ u
            u = (u.transpose(1, 2) if shape[0] > shape[1] else u).float()
            scale = rate * max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_add_([p.data.view(parts, *shape)[k] for p, k, parts in members], list(u.unbind(0)),
                                alpha=-scale)


def save(path, names, tensors):
    save_file({n: t.detach().to(torch.float16).cpu().numpy() for n, t in zip(names, tensors)}, path)


# --- report ----------------------------------------------------------------------------------------------------------
def psnr(a, b):
    return 10 * math.log10(255 ** 2 / np.mean((a.astype(np.float64) - b) ** 2))


@torch.no_grad()
def denoise(model, noisy, sigma, device):
    """8-bit picture in, 8-bit picture out, as the application does it."""
    grey = noisy.ndim == 2
    rgb = np.repeat(noisy[..., None], 3, -1) if grey else noisy
    h, w, _ = rgb.shape
    padded = np.pad(rgb, ((0, -h % PATCH), (0, -w % PATCH), (0, 0)), mode="reflect")
    x = torch.from_numpy(padded).to(device).float()[None]
    y = (x - sigma * model(x, torch.tensor([float(sigma)], device=device)))[0, :h, :w].cpu().numpy()
    return np.clip(np.rint(y.mean(-1) if grey else y), 0, 255).astype(np.uint8)


def report(model, files, device, sigmas=(15, 25, 50)):
    for file in files:
        clean = np.asarray(Image.open(file))
        line = f"{file.stem[:40]:40} {clean.shape[1]}x{clean.shape[0]}"
        for sigma in sigmas:
            noise = np.random.default_rng(0).normal(0, sigma, clean.shape)
            noisy = np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)
            line += f"   sigma {sigma}: {psnr(noisy, clean):.2f} -> {psnr(denoise(model, noisy, sigma, device), clean):.2f}"
        print(line, flush=True)


def main():
    begin = time.time()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=9, help="until the weights are written, loading included")
    parser.add_argument("--tokens", type=int, default=65536, help="patches per step")
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=2e-3)
    parser.add_argument("--optimizer", choices=("muon", "adam"), default="muon")
    parser.add_argument("--held-out", type=pathlib.Path)
    parser.add_argument("--largest", type=int, default=2048, help="leaves out crops with a larger side")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    pictures = Pictures(args.dataset, device)
    model = Denoiser().to(device)
    names, params = zip(*model.named_parameters())
    print(f"{sum(p.numel() for p in params)} parameters", flush=True)
    matrices = [p for n, p in zip(names, params) if n.startswith("blocks") and p.ndim == 2]
    for n, p in zip(names, params):
        p.packed = n.endswith("qkv.weight")
    muon = Muon(matrices if args.optimizer == "muon" else [])
    rest = [p for p in params if args.optimizer == "adam" or not any(p is m for m in matrices)]
    adam = torch.optim.AdamW(rest, lr=args.adam_rate, betas=(0.9, 0.98), weight_decay=0.0, **({"fused": True} if cuda else {}))
    average = [p.detach().clone() for p in params]
    plain = Block.forward
    if cuda:
        torch.set_float32_matmul_precision("high")
        torch._dynamo.config.cache_size_limit = 64
        Block.forward = torch.compile(Block.forward, dynamic=False)
    shapes = [s for s in SHAPES if max(s[:2]) <= args.largest]
    odds = np.array([s[2] for s in shapes]) / sum(s[2] for s in shapes)

    def step(h, w, zoom):
        clean, noisy, sigma, told = pictures.batch(max(1, args.tokens * PATCH ** 2 // (h * w)), h, w, zoom)
        output = model(noisy, told, bf16=cuda) * told[:, None, None, None]
        error = ((noisy - output - clean) / sigma[:, None, None, None]).square().mean((1, 2, 3))
        loss = (error + 1e-3).sqrt().mean()
        loss.backward()
        return loss.detach()

    for h, w, _ in shapes:  # compiles each shape
        step(h, w, 1.0)
        model.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        print(f"{time.time() - begin:.1f} s: {h}x{w} ready", flush=True)
    start, end = time.time(), begin + 60 * args.minutes
    losses, steps, shown, saved = [], 0, start, start
    while time.time() < end:
        done = (time.time() - start) / (end - start)
        rate = min(1.0, done / 0.02, max(0.0, (1 - done) / 0.7))
        h, w, _ = shapes[rng.choice(len(shapes), p=odds)]
        losses.append(step(h, w, float(rng.choice([1, 1, 1, 1.25, 1.5, 2]))))
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for group in adam.param_groups:
            group["lr"] = rate * args.adam_rate
        adam.step()
        muon.step(rate * args.muon_rate)
        model.zero_grad(set_to_none=True)
        steps += 1
        decay = min(0.998, 1 - 1 / steps)
        torch._foreach_mul_(average, decay)
        torch._foreach_add_(average, [p.data for p in params], alpha=1 - decay)
        if steps % 20 == 0 and cuda:
            torch.cuda.synchronize()  # keeps the clock honest
        if time.time() - shown > 10:
            shown = time.time()
            print(f"{shown - begin:.0f} s: step {steps}, rate {rate:.3f}, loss {torch.stack(losses).mean():.4f}", flush=True)
            losses = []
        if time.time() - saved > 100:
            saved = time.time()
            save(args.output, names, average)
    save(args.output, names, average)
    print(f"{steps} steps in {time.time() - start:.0f} s, {steps / (time.time() - start):.2f} per second, "
          f"{args.tokens} patches each; weights written after {time.time() - begin:.0f} s", flush=True)
    if cuda:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")

    Block.forward = plain
    torch.set_float32_matmul_precision("highest")
    with torch.no_grad():
        for p, a in zip(params, average):
            p.copy_(a.to(torch.float16))  # what the file holds
    files = sorted(args.held_out.glob("*.png")) if args.held_out else []
    report(model, files + sorted(args.dataset.glob("valid-*")), device)


if __name__ == "__main__":
    main()
