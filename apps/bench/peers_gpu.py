#!/usr/bin/env python3
"""Times axial blocks (a row layer and a column layer) on a GPU against PyTorch, and draws the result.

    apps/bench/peers_gpu.py --warpweave build/release/warpweave [--precisions bf16,fp32] [--only seed,msa]
        [--modes eager,compile,max-autotune] [--json docs/gpu_blocks.json] [--picture docs/gpu_blocks.png]
    apps/bench/peers_gpu.py --draw docs/gpu_blocks.json --picture docs/gpu_blocks.png

Needs PyTorch with CUDA, numpy, safetensors and, for the picture, matplotlib. `warpweave bench --suite gpu --check-auto`
runs first, then the peers under the same protocol (docs/performance.md): blocks chained in one replayed CUDA graph,
median of 7 to 9 replays. Peers are naive attention (matmul, softmax, matmul), scaled_dot_product_attention as PyTorch
chooses it, and the same forced to cuDNN; each eager and compiled. Before anything is timed, outputs of ours and of
every peer are compared for each dim and head count on the shape's grid cut to 64 x 64.

Compiling is most of the time: processes of their own fill torch.compile's disk cache in parallel first. max-autotune is
left out by default: it costs far more still. `--modes compile` with `--peers SDPA,cuDNN` is the short form.
"""
import argparse
import contextlib
import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

LARGE_FLOP = 50e9
TOLERANCE = {"bf16": 3e-2, "fp16": 4e-3, "tf32": 2e-3, "fp32": 1e-5}  # of ours against a peer, relative to the update
PEERS = ("naive", "SDPA", "cuDNN")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--warpweave", help="the warpweave executable")
    p.add_argument("--precisions", default="bf16,fp32")
    p.add_argument("--only", help="these shapes, separated by commas")
    p.add_argument("--peers", default=",".join(PEERS))
    p.add_argument("--modes", default="eager,compile", help="of eager, compile, max-autotune")
    p.add_argument("--workers", type=int, default=8, help="processes that compile ahead; 0: none")
    p.add_argument("--seconds", type=float, default=0.1, help="of `warpweave bench` for each shape")
    p.add_argument("--plan", default="auto", help="of `warpweave bench`")
    p.add_argument("--json", help="write the results here")
    p.add_argument("--picture", help="draw the results here (PNG)")
    p.add_argument("--draw", help="draw these results instead of measuring")
    p.add_argument("--markdown", action="store_true", help="print the table as Markdown, for docs/performance.md")
    p.add_argument("--compile-ahead", help=argparse.SUPPRESS)  # a worker's list of problems
    return p.parse_args()


# ---------------------------------------------------------------- the peers

def weights_of(dim, rng):
    import numpy as np
    w = {}
    for s in ("row", "col"):
        w[f"{s}_norm.weight"] = 1 + 0.1 * rng.standard_normal(dim)
        w[f"{s}_norm.bias"] = 0.1 * rng.standard_normal(dim)
        w[f"{s}_qkv.weight"] = rng.standard_normal((3 * dim, dim)) / math.sqrt(dim)
        w[f"{s}_out.weight"] = rng.standard_normal((dim, dim)) / math.sqrt(dim)
        w[f"{s}_out.bias"] = 0.1 * rng.standard_normal(dim)
    return {k: v.astype(np.float32) for k, v in w.items()}


def torch_type(precision):
    import torch
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def block_of(dim, heads, precision, peer):
    """The block as a function of x [B, H, W, D], with weights that depend on the dim alone."""
    import numpy as np
    import torch
    import torch.nn.functional as F
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    w = {k: torch.from_numpy(v).to("cuda", torch_type(precision))
         for k, v in weights_of(dim, np.random.default_rng(1)).items()}
    scale = 1 / math.sqrt(dim // heads)

    def layer(x, s):  # [sequences, length, dim]
        n, l, d = x.shape
        qkv = F.linear(F.layer_norm(x, (d,), w[f"{s}_norm.weight"], w[f"{s}_norm.bias"]), w[f"{s}_qkv.weight"])
        q, k, v = qkv.view(n, l, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        if peer == "naive":
            o = torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v
        else:
            o = F.scaled_dot_product_attention(q, k, v)
        return F.linear(o.transpose(1, 2).reshape(n, l, d), w[f"{s}_out.weight"], w[f"{s}_out.bias"])

    def block(x):
        b, h, wd, d = x.shape
        x = x + layer(x.reshape(b * h, wd, d), "row").view(b, h, wd, d)
        c = layer(x.transpose(1, 2).reshape(b * wd, h, d), "col").view(b, wd, h, d)
        return x + c.transpose(1, 2)

    return block


def backend(peer):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if peer == "cuDNN" else contextlib.nullcontext()


def made(shape, precision, peer, mode):
    import torch
    block = block_of(shape[3], shape[4], precision, peer)
    if mode == "eager":
        return block
    torch._dynamo.reset()
    return torch.compile(block, dynamic=False, mode="max-autotune-no-cudagraphs" if mode == "max-autotune" else None)


def random_input(shape, precision):
    import torch
    torch.manual_seed(0)
    return torch.randn(shape[:4], device="cuda", dtype=torch_type(precision))


def time_peer(shape, precision, peer, mode):
    """Microseconds a block: median, least, most."""
    import torch
    b, h, w, d, _ = shape
    flop = b * h * w * (16 * d * d + 4 * d * (h + w))
    chain = 5 if flop > LARGE_FLOP else 20
    with torch.inference_mode(), backend(peer):
        block, x = made(shape, precision, peer, mode), random_input(shape, precision)
        start = time.time()
        block(x)
        torch.cuda.synchronize()
        first = time.time() - start
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            block(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x
            for _ in range(chain):
                y = block(y)
        y.fill_(float("nan"))

        def replay():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            return begin.elapsed_time(end) * 1e3 / chain

        slow = replay() * chain > 50e3  # microseconds; the first replay only warms up
        times = [replay() for _ in range(7 if slow else 10)][0 if slow else 1:]
        if not bool(torch.isfinite(y).all()):
            raise RuntimeError("the output holds numbers that are not finite")
    times.sort()
    return {"us": round(times[len(times) // 2], 2), "min_us": round(times[0], 2), "max_us": round(times[-1], 2),
            "first_call_s": round(first, 1)}


def applies(precision, peer):
    return peer != "cuDNN" or precision in ("bf16", "fp16")  # cuDNN's attention takes 16-bit types alone


# ---------------------------------------------------------------- agreement

def compare(a, shapes, precisions, peers, folder):
    """Largest difference between ours and each peer, for every dim, head count and precision."""
    import numpy as np
    import torch
    from safetensors.numpy import save_file
    kinds = {}
    for s in shapes.values():
        kinds.setdefault((s[3], s[4]), (1, min(s[1], 64), min(s[2], 64), s[3], s[4]))
    jobs = []
    for (dim, heads), shape in kinds.items():
        base = os.path.join(folder, f"{dim}_{heads}")
        save_file(weights_of(dim, np.random.default_rng(1)), base + ".safetensors")
        np.save(base + ".npy", np.random.default_rng(2).standard_normal(shape[:4], np.float32))
        with open(base + ".yaml", "w") as f:
            f.write(f"name: block\ninput: {{dim: {dim}}}\nlayers:\n"
                    f'  - axial_attention: {{axis: row, heads: {heads}, tensors: "row_{{name}}"}}\n'
                    f'  - axial_attention: {{axis: column, heads: {heads}, tensors: "col_{{name}}"}}\n')
        jobs += [(base, shape, p) for p in precisions]

    def ours(job):
        base, _, precision = job
        subprocess.run([a.warpweave, "run", "--config", base + ".yaml", "--weights", base + ".safetensors", "--input",
                        base + ".npy", "--output", f"{base}_{precision}.npy", "--device", "cuda", "--precision",
                        precision, "--plan", a.plan, "--quiet"], check=True)

    def kernels(precision):  # compiled before anything is timed
        subprocess.run([a.warpweave, "bench", "--suite", "gpu", "--once", "--precision", precision, "--plan", a.plan]
                       + (["--only", a.only] if a.only else []), check=True)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(kernels, p) for p in precisions] + [pool.submit(ours, j) for j in jobs]:
            done.result()
    worst = {}
    with torch.inference_mode():
        for base, shape, precision in jobs:
            x = np.load(base + ".npy")
            y = np.load(f"{base}_{precision}.npy").astype(np.float64)
            t = torch.from_numpy(x).to("cuda", torch_type(precision))
            for peer in peers:
                if not applies(precision, peer):
                    continue
                with backend(peer):
                    z = block_of(shape[3], shape[4], precision, peer)(t).double().cpu().numpy()
                difference = float(np.linalg.norm(y - z) / np.linalg.norm(z - x))
                if not difference < TOLERANCE[precision]:
                    sys.exit(f"dim {shape[3]}, {shape[4]} heads, {precision}: {peer} and Warpweave differ by "
                             f"{difference:.1e} of the update")
                worst[precision] = max(worst.get(precision, 0), difference)
    return worst


# ---------------------------------------------------------------- measuring

def ours(a, precision, folder):
    path = os.path.join(folder, f"ours_{precision}.json")
    command = [a.warpweave, "bench", "--suite", "gpu", "--precision", precision, "--plan", a.plan, "--seconds",
               str(a.seconds), "--repeat", "9", "--json", path]
    if a.only:
        command += ["--only", a.only]
    subprocess.run(command, check=True)
    with open(path) as f:
        return json.load(f)


def compile_ahead(problems):
    """What a worker does: one call of each compiled problem, for what it leaves in the disk cache."""
    import torch
    for shape, precision, peer, mode in problems:
        try:
            with torch.inference_mode(), backend(peer):
                x = random_input(shape, precision)
                made(shape, precision, peer, mode)(x)
                torch.cuda.synchronize()
                del x
            torch.cuda.empty_cache()
        except Exception as error:  # it will be met, and told, when it is timed
            print(f"compiling ahead: {str(error)[:100]}", file=sys.stderr)


def suite_shapes(a):
    """name -> (B, H, W, D, heads), as `warpweave bench` tells them."""
    listed = subprocess.run([a.warpweave, "bench", "--suite", "gpu", "--list"], check=True, capture_output=True, text=True)
    shapes = {name: tuple(map(int, numbers)) for name, *numbers in (line.split() for line in listed.stdout.splitlines())}
    return {name: s for name, s in shapes.items() if not a.only or name in a.only.split(",")}


def save(results, path):
    if path:
        with open(path, "w") as f:
            json.dump(results, f, indent=1)
            f.write("\n")


def measure(a):
    started = time.time()
    lap = lambda what: print(f"[{time.time() - started:6.1f} s] {what}", flush=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "warpweave-inductor"))
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the workers are enough
    shapes = suite_shapes(a)
    precisions, peers, modes = a.precisions.split(","), a.peers.split(","), a.modes.split(",")
    problems = [(shape, precision, peer, mode) for shape in shapes.values() for precision in precisions
                for mode in modes for peer in peers if applies(precision, peer)]
    # Dealt out in turns, largest first, so that the workers end together.
    compiled = sorted((p for p in problems if p[3] != "eager"), key=lambda p: -math.prod(p[0][:4]))
    workers = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--compile-ahead",
                                 json.dumps(compiled[i::a.workers])]) for i in range(min(a.workers, len(compiled)))]
    import torch
    lap("PyTorch loaded")
    results = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "ours": {}, "peers": []}
    with tempfile.TemporaryDirectory() as folder:
        results["difference"] = compare(a, shapes, precisions, peers, folder)
        lap(f"outputs agree: {results['difference']}")
        for worker in workers:
            worker.wait()
        lap(f"compiled ahead by {len(workers)} processes")
        for precision in precisions:
            run = ours(a, precision, folder)
            results["gpu"], results["version"] = run["gpu"], run["version"]
            results["ours"][precision] = [r for r in run["results"] if r["plan"] == a.plan]
        lap("ours timed")
    names = {shape: name for name, shape in shapes.items()}
    for shape, precision, peer, mode in problems:
        entry = {"name": names[shape], "precision": precision, "peer": peer, "mode": mode}
        try:
            entry |= time_peer(shape, precision, peer, mode)
        except Exception as error:
            entry["failure"] = str(error).splitlines()[0][:120]
        torch.cuda.empty_cache()
        results["peers"].append(entry)
        save(results, a.json)  # what there is, should this be interrupted
    lap("peers timed")
    return results


def best_peers(results, precision):
    """name -> (microseconds, peer, mode)"""
    best = {}
    for e in results["peers"]:
        if e["precision"] == precision and "us" in e:
            best[e["name"]] = min(best.get(e["name"], (math.inf,)), (e["us"], e["peer"], e["mode"]))
    return best


def table(results):
    for e in results["peers"]:
        if "failure" in e:
            print(f"{e['name']} {e['precision']} {e['peer']} {e['mode']}: {e['failure']}")
    print(f"\n{'us a block':<11} {'type':<5} {'ours':>9} {'best peer':>10}  {'ratio':>6} {'limit':>8} {'share':>6}  "
          "peer; ours")
    for precision, ours in results["ours"].items():
        best = best_peers(results, precision)
        for r in ours:
            if r["median_ms"] is None:
                print(f"{r['name']:<11} {precision:<5} {r['failure']}")
                continue
            us, (peer_us, *peer) = r["median_ms"] * 1e3, best.get(r["name"], (math.nan, "-", "-"))
            limit = f"{r['least_ms'] * 1e3:8.1f} {r['share']:6.0%}" if r["least_ms"] else f"{'-':>8} {'-':>6}"
            print(f"{r['name']:<11} {precision:<5} {us:9.2f} {peer_us:10.1f}  {peer_us / us:6.2f} {limit}  "
                  f"{' '.join(peer)}; {r['implementations']}")


def markdown(results):
    number = lambda v: f"{v:.0f}" if v >= 100 else f"{v:.3g}"
    precisions = list(results["ours"])
    print("| shape | B,H,W,D,heads | "
          + " | ".join(f"limit {p} | best peer {p} | ours {p} | times the peer | plan" for p in precisions) + " |\n" + "| --- | --- " + "| --- " * (5 * len(precisions)) + "|")
    for i, first in enumerate(results["ours"][precisions[0]]):
        cells = [first["name"], ",".join(map(str, first["shape"] + [first["heads"]]))]
        for precision in precisions:
            r, best = results["ours"][precision][i], best_peers(results, precision).get(first["name"])
            ours = r["median_ms"] and r["median_ms"] * 1e3
            cells += [number(r["least_ms"] * 1e3) if r["least_ms"] else "–",
                      f"{number(best[0])} ({best[1]}, {best[2]})" if best else "–", number(ours) if ours else r["failure"],
                      f"{best[0] / ours:.2f}" if best and ours else "–", r["implementations"]]
        print("| " + " | ".join(cells) + " |")


# ---------------------------------------------------------------- the picture

def draw(results, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    precisions = [p for p in results["ours"] if any(r["median_ms"] for r in results["ours"][p])]
    figure, axes = plt.subplots(1, len(precisions), figsize=(5.6 * len(precisions), 4.8), sharey=True, squeeze=False)
    colours = {"naive": "#b0b0b0", "SDPA": "#e69f00", "cuDNN": "#56b4e9"}
    for axis, precision in zip(axes[0], precisions):
        ours = [r for r in results["ours"][precision] if r["median_ms"]]
        names = [r["name"] for r in ours]
        place = {name: i for i, name in enumerate(names)}
        for peer, colour in colours.items():
            for mode, marker in (("eager", "o"), ("compile", "s"), ("max-autotune", "^")):
                points = [(place[e["name"]], e["us"]) for e in results["peers"] if e["precision"] == precision
                          and e["peer"] == peer and e["mode"] == mode and "us" in e and e["name"] in place]
                if points:
                    axis.plot(*zip(*points), marker, color=colour, markersize=5, linestyle="none",
                              label=f"PyTorch {peer}, {mode}")
        axis.plot(range(len(ours)), [r["median_ms"] * 1e3 for r in ours], "D", color="#cc3311", markersize=7,
                  label="Warpweave")
        limits = [(i, r["least_ms"] * 1e3) for i, r in enumerate(ours) if r["least_ms"]]
        for i, limit in limits:
            axis.plot([i - 0.35, i + 0.35], [limit, limit], "-", color="black", linewidth=1.5,
                      label="limit of the chip" if i == limits[0][0] else None)
        axis.set_yscale("log")
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right")
        axis.set_title(precision)
        axis.grid(axis="y", which="major", alpha=0.35)
    axes[0][0].set_ylabel("µs for a row layer and a column layer")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="lower center", ncols=4, frameon=False)
    figure.suptitle(f"One axial block on an {results['gpu']} (lower is better), PyTorch {results['torch'].split('+')[0]}, "
                    f"{results['date']}", fontsize=10)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main():
    a = options()
    if a.compile_ahead:
        return compile_ahead([(tuple(s), *rest) for s, *rest in json.loads(a.compile_ahead)])
    if a.draw:
        with open(a.draw) as f:
            results = json.load(f)
    else:
        if not a.warpweave:
            sys.exit("--warpweave: the executable is needed")
        results = measure(a)
    if a.picture:
        draw(results, a.picture)
    (markdown if a.markdown else table)(results)


if __name__ == "__main__":
    main()
