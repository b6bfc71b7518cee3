#!/usr/bin/env python3
"""How an axial block's speed grows with threads, beside what the machine gives to programs that share nothing.

    apps/bench/scaling_cpu.py --warpweave build/release/warpweave [--threads N] [--rounds 4] [--only pair,msa]

Every round times one thread on some cores, one after the other (other cores in the next round: on a virtual machine they
differ); then N threads; then N processes of one thread each at the same time on cores of their own, which is what clocks,
caches, memory and neighbours leave when all cores are busy; and, where PyTorch is installed, a product of two 2048 x 2048
matrices by it on the same cores alone and on N threads. Efficiency is the rate over N times the mean of the cores alone in
the same round. All rounds are printed, in GFLOP/s, and the medians.
"""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def start(warpweave, case, threads, seconds, path, cores):
    command = [warpweave, "bench", "--suite", "cpu", "--device", "cpu", "--quiet", "--only", case, "--repeat", "1",
               "--threads", str(threads), "--seconds", str(seconds), "--json", path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL,
                            preexec_fn=lambda: os.sched_setaffinity(0, cores))


def rates(warpweave, case, seconds, threads, sets):
    """GFLOP/s of processes that run together, each on its own set of cores."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{i}.json") for i in range(len(sets))]
        running = [start(warpweave, case, threads, seconds, path, cores) for path, cores in zip(paths, sets)]
        if any([p.wait() for p in running]):
            sys.exit("warpweave bench failed")
        results = []
        for path in paths:
            with open(path) as file:
                results.append(json.load(file)["results"][0]["gflop_per_s"])
    return results


def serve_products():
    """Reads lines `seconds core core ..` and answers each with PyTorch's rate for a large product on those cores."""
    import torch
    n = 2048
    a, b = torch.randn(n, n), torch.randn(n, n)
    torch.mm(a, b)  # starts PyTorch's threads while all cores are allowed
    for line in sys.stdin:
        seconds, *cores = line.split()
        os.sched_setaffinity(0, {int(c) for c in cores})
        torch.set_num_threads(len(cores))
        torch.mm(a, b)
        count, begin = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begin < float(seconds):
            torch.mm(a, b)
            count += 1
        print(2e-9 * n**3 * count / (time.perf_counter() - begin), flush=True)


class Products:
    def __init__(self, threads):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        self.process = subprocess.Popen([sys.executable, __file__, "--serve-products"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)

    def rate(self, seconds, cores):
        print(seconds, *cores, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def line(name, alone, together, apart, n):
    text = f"{name:12} {alone:8.0f} {together:10.0f} {together / alone / n:7.0%}"
    if apart is not None:
        text += f" {apart:12.0f} {apart / alone / n:7.0%} {together / apart:8.0%}"
    print(text, flush=True)


def main():
    if sys.argv[1:] == ["--serve-products"]:
        return serve_products()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpweave", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1, help="of each timing; processes overlap less in short ones")
    parser.add_argument("--cores", type=int, default=4, help="cores that are timed alone in a round")
    parser.add_argument("--only", default="pair,msa")
    a = parser.parse_args()
    n = a.threads
    cores = sorted(os.sched_getaffinity(0))[:n]
    products = Products(n) if importlib.util.find_spec("torch") else None
    print(f"{'':12} {'a core':>8} {f'{n} threads':>10} {'':7} {f'{n} processes':>12} {'':7} {'of them':>8}")
    rows = {case: [] for case in a.only.split(",")} | ({"product": []} if products else {})
    for r in range(a.rounds):
        stride = max(1, len(cores) // a.cores)
        some = cores[r % stride::stride]
        for case in a.only.split(","):
            alone = statistics.mean(rates(a.warpweave, case, a.seconds, 1, [{c}])[0] for c in some)
            together = rates(a.warpweave, case, a.seconds, n, [set(cores)])[0]
            apart = sum(rates(a.warpweave, case, a.seconds, 1, [{c} for c in cores]))
            rows[case].append((alone, together, apart))
            line(case, alone, together, apart, n)
        if products:
            alone = statistics.mean(products.rate(a.seconds, [c]) for c in some)
            rows["product"].append((alone, products.rate(a.seconds, cores), None))
            line("product", *rows["product"][-1], n)
    print("medians, and the medians of the ratios:")
    for name, results in rows.items():
        alone, together = (statistics.median(x[i] for x in results) for i in (0, 1))
        ratio = statistics.median(t / o / n for o, t, _ in results)
        text = f"{name:12} {alone:8.0f} {together:10.0f} {ratio:7.0%}"
        if results[0][2] is not None:
            apart = statistics.median(x[2] for x in results)
            text += (f" {apart:12.0f} {statistics.median(p / o / n for o, _, p in results):7.0%}"
                     f" {statistics.median(t / p for _, t, p in results):8.0%}")
        print(text)


if __name__ == "__main__":
    main()
