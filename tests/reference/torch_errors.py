#!/usr/bin/env python3
"""PyTorch's own error on every case of cases.py, in each precision, against float64: the yardstick of the limits.

    python3 tests/reference/torch_errors.py [FILE]      (PyTorch and NumPy; under a minute, on a GPU where there is one)

Writes FILE (tests/accuracy/torch_errors.json): case -> {"fp32", "tf32", "bf16", "fp16"} -> ||y - y64|| / norm, the norm
being ||y64 - x|| or ||y64|| as the case says. Modules and input are converted to the precision's type as a user
does with module.to(dtype); tf32 is PyTorch's switch for matrix products, which exists on a GPU only.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

import axial
from cases import CASES, case_input, case_weights

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def normalise(x, w, kind, eps):
    if kind == "none":
        return x
    if kind == "layer":
        return F.layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"], eps)
    wide = x.float()  # as the RMSNorm modules of language models do
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * w["norm.weight"]


def linear(x, w, prefix):
    return F.linear(x, w[prefix + "weight"], w.get(prefix + "bias"))


def rotate(t, rope):
    dims = rope.get("dims") or t.shape[-1]
    position = torch.arange(t.shape[-2], device=t.device, dtype=torch.float64)
    pair = torch.arange(dims // 2, device=t.device, dtype=torch.float64)
    angle = position[:, None] * float(rope.get("theta", 10000)) ** (-2 * pair / dims)
    cos, sin = angle.cos().to(t.dtype), angle.sin().to(t.dtype)
    part, rest = t[..., :dims], t[..., dims:]
    if rope.get("style", "half") == "half":
        a, b = part.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    else:
        a, b = part[..., 0::2], part[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((turned, rest), -1)


def attention(x, w, p, mask):
    if p["axis"] == "column":
        turned = attention(x.transpose(1, 2), w, p | {"axis": "row"}, None if mask is None else mask.transpose(1, 2))
        return turned.transpose(1, 2)
    batch, rows, length, _ = x.shape
    qkv = linear(normalise(x, w, p["norm"], p["eps"]), w, "qkv.")
    q, k, v = (t.unflatten(-1, (p["heads"], p["head_dim"])).transpose(2, 3).flatten(0, 1) for t in qkv.chunk(3, -1))
    if p["rope"]:
        q, k = rotate(q, p["rope"]), rotate(k, p["rope"])
    allowed = torch.ones(batch, rows, 1, length, length, dtype=torch.bool, device=x.device)
    if mask is not None:
        allowed = allowed & mask[:, :, None, None, :]
    if p["causal"]:
        allowed = allowed & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    allowed = allowed.flatten(0, 1)
    some = allowed.any(-1, keepdim=True)
    if mask is None and not p["causal"]:
        o = F.scaled_dot_product_attention(q, k, v, scale=p["scale"])
    else:  # a query without a key would be NaN: let it see all, then give it zero
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | ~some, scale=p["scale"])
        o = torch.where(some, o, 0)
    o = o.unflatten(0, (batch, rows)).transpose(2, 3).flatten(-2)
    y = linear(o, w, "out.")
    return x + y if p["residual"] else y


ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu}


def layer(kind, p, w, x, mask):
    if kind == "axial_attention":
        return attention(x, w, p, mask)
    if kind == "feed_forward":
        up = linear(normalise(x, w, p["norm"], p["eps"]), w, "up.")
        y = linear(ACTIVATIONS[p["activation"]](up), w, "down.")
        return x + y if p["residual"] else y
    if kind == "norm":
        return normalise(x, w, p["kind"], p["eps"])
    if kind == "linear":
        return linear(x, w, "")
    n = p.get("patch")
    if kind == "patch_embed":
        patches = x.unflatten(2, (-1, n)).unflatten(1, (-1, n)).transpose(2, 3).flatten(3)
        return linear(patches, w, "")
    if kind == "patch_unembed":
        pixels = linear(x, w, "").unflatten(-1, (n, n, p["channels"]))
        return pixels.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    if kind == "position_embedding":
        return x + w["rows"][: x.shape[1], None] + w["columns"][: x.shape[2]]
    raise ValueError(kind)


def run(case, weights, x, mask, dtype):
    x = torch.from_numpy(x).to(DEVICE, dtype)
    mask = None if mask is None else torch.from_numpy(mask).to(DEVICE)
    for index, (kind, p) in enumerate(axial.expand(case["model"])):
        w = {name: torch.from_numpy(weights[f"{index}.{name}"]).to(DEVICE, dtype) for name in axial.tensor_shapes(kind, p)}
        x = layer(kind, p, w, x, mask)
    return x.double().cpu().numpy()


def main():
    errors = {}
    for case in CASES:
        weights = case_weights(case)
        x, mask = case_input(case)
        truth = axial.forward(case["model"], weights, x, mask)
        base = truth - x if case.get("against", "update") == "update" else truth
        norm = math.sqrt(float(np.sum(base * base)))
        found = {}
        for name, dtype in PRECISIONS.items():
            if name == "tf32" and DEVICE == "cpu":
                continue
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            with torch.no_grad():
                y = run(case, weights, x, mask, dtype)
            error = math.sqrt(float(np.sum((y - truth) ** 2))) / norm
            if math.isfinite(error):
                found[name] = float(f"{error:.3g}")
        errors[case["name"]] = found
        print(f"{case['name']:28}", "  ".join(f"{k} {v:9.2e}" for k, v in found.items()), flush=True)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    header = json.dumps({"torch": torch.__version__, "device": device})[1:-1]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in errors.items())
    default = pathlib.Path(__file__).resolve().parent.parent / "accuracy" / "torch_errors.json"
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path.write_text("{" + header + ', "errors": {\n' + lines + "\n}}\n")


if __name__ == "__main__":
    main()
