#!/usr/bin/env python3
"""Times one axial block (a row layer and a column layer) on the CPU against ONNX Runtime and, where it is installed,
PyTorch: same weights, same input, same threads, in turns.

    apps/bench/peers_cpu.py --warpweave build/warpweave [--threads 2] [--only pair] [--json FILE]

Needs numpy, safetensors, onnx and onnxruntime. For every shape the outputs are compared first; then each round times
Warpweave (`warpweave bench`, median of its runs) and each peer (median of as many seconds), and the ratio is taken
within the round. Printed are the medians over the rounds. "product" is the machine's rate for a 3072^3 float32 matrix
product in ONNX Runtime (or PyTorch, where faster), measured in every round as well: the ceiling that a share is of.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--warpweave", required=True, help="the warpweave executable")
p.add_argument("--threads", type=int, default=2)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--seconds", type=float, default=0.5, help="of each engine in each round")
p.add_argument("--only", help="one shape")
p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
p.add_argument("--json", help="write the results here too")
a = p.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

try:
    import torch
    torch.set_num_threads(a.threads)
except ImportError:
    torch = None

SHAPES = {  # B, H, W, D, heads: the suite of `warpweave bench --suite cpu`
    "seed": (4, 32, 32, 64, 4), "image": (1, 64, 64, 128, 4), "pair": (1, 192, 192, 128, 4),
    "msa": (1, 64, 256, 256, 8), "audio": (1, 400, 60, 256, 8), "one-row": (1, 1, 2048, 64, 4)}
PREFIXES = ("row", "col")


def weights_of(dim, rng):
    w = {}
    for s in PREFIXES:
        w[f"{s}_norm.weight"] = 1 + 0.1 * rng.standard_normal(dim)
        w[f"{s}_norm.bias"] = 0.1 * rng.standard_normal(dim)
        w[f"{s}_qkv.weight"] = rng.standard_normal((3 * dim, dim)) / math.sqrt(dim)
        w[f"{s}_out.weight"] = rng.standard_normal((dim, dim)) / math.sqrt(dim)
        w[f"{s}_out.bias"] = 0.1 * rng.standard_normal(dim)
    return {k: v.astype(np.float32) for k, v in w.items()}


class Graph:
    """Builds an ONNX graph node by node, as torch.onnx.export of the usual module would give it."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def __call__(self, op, *inputs, outputs=1, **attributes):
        names = [f"n{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def save(self, x, shape, y, file):
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (x, y)]
        graph = helper.make_graph(self.nodes, "block", info[:1], info[1:], self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def onnx_block(shape, w, file):
    b, h, wd, d, heads = shape
    g, x = Graph(), "x"
    ints = lambda *v: g.constant(np.array(v, np.int64))
    for s in PREFIXES:
        n, l = (b * h, wd) if s == "row" else (b * wd, h)
        t = x if s == "row" else g("Transpose", x, perm=[0, 2, 1, 3])
        t = g("Reshape", t, ints(n, l, d))
        t = g("LayerNormalization", t, g.constant(w[f"{s}_norm.weight"]), g.constant(w[f"{s}_norm.bias"]),
              axis=-1, epsilon=1e-5)
        t = g("MatMul", t, g.constant(np.ascontiguousarray(w[f"{s}_qkv.weight"].T)))
        t = g("Transpose", g("Reshape", t, ints(n, l, 3, heads, d // heads)), perm=[2, 0, 3, 1, 4])
        q, k, v = (g("Squeeze", part, ints(0)) for part in g("Split", t, axis=0, outputs=3))
        score = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
        score = g("Mul", score, g.constant(np.float32(1 / math.sqrt(d // heads))))
        o = g("Transpose", g("MatMul", g("Softmax", score, axis=-1), v), perm=[0, 2, 1, 3])
        o = g("MatMul", g("Reshape", o, ints(n, l, d)), g.constant(np.ascontiguousarray(w[f"{s}_out.weight"].T)))
        o = g("Add", o, g.constant(w[f"{s}_out.bias"]))
        o = g("Reshape", o, ints(b, h, wd, d)) if s == "row" else g(
            "Transpose", g("Reshape", o, ints(b, wd, h, d)), perm=[0, 2, 1, 3])
        x = g("Add", x, o)
    g.save("x", shape[:4], x, file)


def onnx_product(n, file):
    g = Graph()
    y = g("MatMul", "x", g.constant(np.random.default_rng(0).standard_normal((n, n), np.float32)))
    g.save("x", (n, n), y, file)


def session(file):
    options = ort.SessionOptions()
    options.intra_op_num_threads = a.threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def torch_blocks(shape, w):
    """SDPA, eager and compiled, as functions of the input tensor."""
    b, h, wd, d, heads = shape
    t = {k: torch.from_numpy(v) for k, v in w.items()}
    F = torch.nn.functional

    def axis(x, s):
        n, l, _ = x.shape
        q, k, v = F.linear(F.layer_norm(x, (d,), t[f"{s}_norm.weight"], t[f"{s}_norm.bias"]),
                           t[f"{s}_qkv.weight"]).view(n, l, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, l, d)
        return F.linear(o, t[f"{s}_out.weight"], t[f"{s}_out.bias"])

    def block(x):
        x = x + axis(x.reshape(b * h, wd, d), "row").view(b, h, wd, d)
        return x + axis(x.permute(0, 2, 1, 3).reshape(b * wd, h, d), "col").view(b, wd, h, d).permute(0, 2, 1, 3)

    blocks = {"torch SDPA": block}
    if not a.no_compile:
        torch._dynamo.reset()
        blocks["torch.compile"] = torch.compile(block, dynamic=False)
    return blocks


def median_time(f, seconds):
    f()
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        f()
        times.append(time.perf_counter() - t)
    return statistics.median(times)


def warpweave_time(arguments, folder):
    out = os.path.join(folder, "bench.json")
    subprocess.run([a.warpweave, "bench", *arguments, "--threads", str(a.threads), "--device", "cpu", "--repeat", "3",
                    "--seconds", str(a.seconds), "--json", out], check=True, stdout=subprocess.DEVNULL)
    with open(out) as f:
        return json.load(f)["results"][0]["median_ms"] / 1e3


def measure(name, shape, folder):
    b, h, wd, d, heads = shape
    rng = np.random.default_rng(1)
    w, x = weights_of(d, rng), rng.standard_normal(shape[:4], np.float32)
    path = lambda f: os.path.join(folder, f)
    save_file(w, path("w.safetensors"))
    np.save(path("x.npy"), x)
    with open(path("block.yaml"), "w") as f:
        f.write(f"name: block\ninput: {{dim: {d}}}\nlayers:\n"
                f'  - axial_attention: {{axis: row, heads: {heads}, tensors: "row_{{name}}"}}\n'
                f'  - axial_attention: {{axis: column, heads: {heads}, tensors: "col_{{name}}"}}\n')
    model = ["--config", path("block.yaml"), "--weights", path("w.safetensors")]
    subprocess.run([a.warpweave, "run", *model, "--input", path("x.npy"), "--output", path("y.npy"), "--device", "cpu",
                    "--threads", str(a.threads), "--quiet"], check=True)
    ours = np.load(path("y.npy"))

    onnx_block(shape, w, path("block.onnx"))
    onnx_product(3072, path("product.onnx"))
    block, product = session(path("block.onnx")), session(path("product.onnx"))
    square = {"x": rng.standard_normal((3072, 3072), np.float32)}
    peers = {"ONNX Runtime": lambda: block.run(None, {"x": x})[0]}
    if torch:
        t = torch.from_numpy(x)
        peers |= {k: (lambda f=f: f(t).numpy()) for k, f in torch_blocks(shape, w).items()}
    differences = {}
    with torch.inference_mode() if torch else tempfile.TemporaryDirectory():
        for peer, f in peers.items():
            y = f()
            differences[peer] = float(np.linalg.norm(y - ours) / np.linalg.norm(y - x))
            if not differences[peer] < 1e-5:
                sys.exit(f"{name}: {peer} and Warpweave differ by {differences[peer]:.1e} of the update")
        rounds = []
        for _ in range(a.rounds):
            r = {"warpweave": warpweave_time([*model, "--shape", f"{b},{h},{wd}"], folder)}
            r |= {peer: median_time(f, a.seconds) for peer, f in peers.items()}
            r["product"] = median_time(lambda: product.run(None, square), a.seconds)
            rounds.append(r)
    middle = lambda f: statistics.median(f(r) for r in rounds)
    flops = b * h * wd * (16 * d * d + 4 * d * (wd + h))
    result = {"shape": name, "gflop": flops / 1e9, "threads": a.threads, "ms": middle(lambda r: r["warpweave"]) * 1e3,
              "gflop_per_s": flops / 1e9 / middle(lambda r: r["warpweave"]),
              "product_gflop_per_s": 2 * 3072**3 / 1e9 / middle(lambda r: r["product"]),
              "share_of_product": middle(lambda r: flops / r["warpweave"] / (2 * 3072**3 / r["product"])),
              "peers_ms": {q: middle(lambda r: r[q]) * 1e3 for q in peers},
              "times_faster_than": {q: middle(lambda r: r[q] / r["warpweave"]) for q in peers},
              "difference": differences}
    print(f"{name:8} {result['ms']:9.3f} ms {result['gflop_per_s']:7.1f} GFLOP/s, {result['share_of_product']:4.0%} of "
          f"{result['product_gflop_per_s']:.0f}; " + "; ".join(
              f"{q} {result['peers_ms'][q]:.3f} ms: {result['times_faster_than'][q]:.2f}x" for q in peers), flush=True)
    return result


results = []
for name, shape in SHAPES.items():
    if a.only in (None, name):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(name, shape, folder))
if a.json:
    with open(a.json, "w") as f:
        json.dump(results, f, indent=1)
