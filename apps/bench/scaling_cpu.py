#!/usr/bin/env python3
"""How an axial block's speed grows with threads, beside what the machine gives to programs that share nothing.

    apps/bench/scaling_cpu.py --warpweave build/release/warpweave [--threads N] [--rounds 3] [--only pair,msa]

Every round times one thread, N threads, and N processes of one thread each at the same time on cores of their own.
Printed are medians over the rounds in GFLOP/s: the efficiency of N threads is their rate over N times one thread's; that of
the processes is what clocks, caches and memory leave when all cores are busy.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def start(warpweave, case, threads, seconds, path, cores):
    command = [warpweave, "bench", "--suite", "cpu", "--device", "cpu", "--quiet", "--only", case, "--repeat", "3",
               "--threads", str(threads), "--seconds", str(seconds), "--json", path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL,
                            preexec_fn=lambda: os.sched_setaffinity(0, cores))


def rates(warpweave, case, processes, seconds, threads):
    """GFLOP/s of each of several processes that run together, each on `threads` cores."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{i}.json") for i in range(processes)]
        running = [start(warpweave, case, threads, seconds, path, set(cores[i * threads:(i + 1) * threads]))
                   for i, path in enumerate(paths)]
        if any(p.wait() for p in running):
            sys.exit("warpweave bench failed")
        results = []
        for path in paths:
            with open(path) as file:
                results.append(json.load(file)["results"][0])
    return [r["gflop_per_s"] for r in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpweave", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="pair,msa")
    a = parser.parse_args()
    n = a.threads
    print(f"{'case':8} {'1 thread':>9} {f'{n} threads':>12} {'efficiency':>10} {f'{n} processes':>13} {'efficiency':>10}")
    for case in a.only.split(","):
        one, together, apart = [], [], []
        for _ in range(a.rounds):
            one += rates(a.warpweave, case, 1, a.seconds, 1)
            together += rates(a.warpweave, case, 1, a.seconds, n)
            # Long enough that all of them overlap most of the time.
            apart.append(sum(rates(a.warpweave, case, n, max(1.0, 3 * a.seconds), 1)))
        one, together, apart = (statistics.median(x) for x in (one, together, apart))
        print(f"{case:8} {one:9.0f} {together:12.0f} {together / one / n:10.0%} {apart:13.0f} {apart / one / n:10.0%}",
              flush=True)


if __name__ == "__main__":
    main()
